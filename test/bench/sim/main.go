// Command sim measures a large simulated cluster of speakers: how soon dead nodes are detected and replaced, the cost,
// and how often a node is wrongly considered dead. It prints Go's benchmark format. docs/development/simulation.md describes
// each line. The progress is on standard error.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/test/sim"
)

type options struct {
	nodes, vips, rounds int
	watch, long, window time.Duration
	losses              []float64
	bursts              bool
	complete            int
	work                time.Duration
	seed                uint64
	faults              map[string]bool
}

func main() {
	var o options
	flag.IntVar(&o.nodes, "nodes", 100, "nodes")
	flag.IntVar(&o.vips, "vips", 2000, "VirtualIPs")
	flag.IntVar(&o.rounds, "rounds", 10, "how often each fault happens")
	flag.DurationVar(&o.watch, "watch", time.Minute, "how long false alarms are counted, per kind of loss")
	flag.DurationVar(&o.long, "long", time.Hour, "virtual time in which nodes that are wrongly taken for unreachable are counted")
	flag.DurationVar(&o.window, "window", 10*time.Second, "how long the idle cluster is measured")
	flag.IntVar(&o.complete, "complete", 0, "speakers that plan all VirtualIPs; the others only those that list them, as in large clusters (0: all up to 200 nodes, else one)")
	flag.DurationVar(&o.work, "work", 2*time.Millisecond, "time from observation to action of a speaker's loop")
	losses := flag.String("losses", "0,1,5,bursts", "shares of lost datagrams in percent, or bursts, for -faults loss")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the first cluster")
	profiles := flag.String("profiles", "standard,fast", "liveness profiles")
	faults := flag.String("faults", strings.Join(kinds, ","), "what to measure")
	cpu := flag.String("cpuprofile", "", "write a CPU profile there")
	flag.Parse()
	if *cpu != "" {
		f, err := os.Create(*cpu)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		defer pprof.StopCPUProfile()
	}
	if err := o.lossesFrom(*losses); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if o.complete == 0 && o.nodes > 200 {
		o.complete = 1
	}
	o.faults = map[string]bool{}
	for _, f := range strings.Split(*faults, ",") {
		o.faults[f] = true
	}
	for _, name := range strings.Split(*profiles, ",") {
		p, err := member.ProfileNamed(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		o.measure(p)
	}
}

func (o *options) lossesFrom(text string) error {
	for _, one := range strings.Split(text, ",") {
		if one == "bursts" {
			o.bursts = true
			continue
		}
		percent, err := strconv.ParseFloat(one, 64)
		if err != nil || percent < 0 || percent > 100 {
			return fmt.Errorf("-losses %s: give percentages, or bursts", text)
		}
		o.losses = append(o.losses, percent/100)
	}
	return nil
}

// kinds are the measurements, in this order.
var kinds = []string{"idle", "power-off", "rack-off", "leave", "join", "link-cut", "pause", "partition", "loss", "asymmetric", "unreachable"}

// run is the cluster of one profile.
type run struct {
	options
	*sim.Cluster
	profile member.Profile
	next    int // the next node to fail
	// step is the measurement in progress, reported the time of the last report.
	step     string
	reported time.Time
}

const reportEvery = 20 * time.Second

func (o options) measure(p member.Profile) {
	if o.faults["unreachable"] {
		defer o.unreachable(p)
		if len(o.faults) == 1 {
			return
		}
	}
	r := &run{options: o, profile: p, step: "boot"}
	r.Cluster = sim.New(sim.Config{Seed: o.seed, Nodes: o.nodes, VIPs: o.vips, Complete: o.complete, Work: o.work, Profile: p})
	r.report()
	took, ok := r.Until(r.longer(20*time.Second), r.Owners.One)
	least, most := r.Owners.Balance()
	cost := r.Speakers[0].Cost
	r.line("boot", ms("one-owner", took), yes("settled", ok), count("vips-least", least), count("vips-most", most), count("claims", len(r.Owners.Moves)),
		count("two-owners", len(r.Owners.Doubled)), ms("plan-cpu", cost.Plan), count("plans", cost.Plans), ms("core-cpu", cost.Core), per("heap-MB-per-node", heap()/float64(o.nodes)))
	r.Run(r.longer(5 * time.Second))
	for _, kind := range kinds {
		if !o.faults[kind] {
			continue
		}
		r.step = kind
		switch kind {
		case "idle":
			r.idle()
		case "power-off":
			r.powerOff(1)
		case "rack-off":
			r.powerOff(max(2, o.nodes/10))
		case "leave":
			r.leave()
		case "join":
			r.join()
		case "link-cut":
			r.linkCut()
		case "pause":
			r.pause()
		case "partition":
			r.partition()
		case "loss":
			r.loss()
		case "asymmetric":
			r.asymmetric()
		}
	}
}

// report prints the progress once in reportEvery of real time: a step of a large cluster takes minutes.
func (r *run) report() {
	if time.Since(r.reported) >= reportEvery {
		r.reported = time.Now()
		vacant, several := r.Owners.Each()
		fmt.Fprintf(os.Stderr, "profile %s, %d nodes, %s: ", r.profile.Name, r.nodes, r.step)
		fmt.Fprintf(os.Stderr, "%.1fs of simulated time", r.Now().Seconds())
		fmt.Fprintf(os.Stderr, ", %d VirtualIPs without an owner, %d with several\n", vacant, several)
	}
	r.After(100*time.Millisecond, r.report)
}

// heap returns the memory in use, in MB.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}

// figure is a number and its unit.
type figure struct {
	value float64
	unit  string
}

func ms(name string, d time.Duration) figure {
	return figure{float64(d) / float64(time.Millisecond), name + "-ms"}
}

func count(name string, n int) figure { return figure{float64(n), name} }

func yes(name string, is bool) figure {
	if is {
		return figure{1, name}
	}
	return figure{0, name}
}

func per(name string, n float64) figure { return figure{n, name} }

// line prints one line of Go's benchmark format.
func (r *run) line(fault string, figures ...figure) {
	fmt.Printf("BenchmarkSim/profile=%s/nodes=%d/vips=%d/%s 1 %s\n", r.profile.Name, r.nodes, r.vips, fault, text(figures))
}

func text(figures []figure) string {
	var fields []string
	for _, f := range figures {
		fields = append(fields, fmt.Sprintf("%.4g %s", f.value, f.unit))
	}
	return strings.Join(fields, " ")
}
