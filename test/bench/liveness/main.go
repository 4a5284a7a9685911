// Command liveness compares how soon, and how often wrongly, nodes are found dead by speaker/member and by
// github.com/hashicorp/memberlist with tuned settings, in one run. Each node is a process in its own network namespace,
// on a LAN and on a node network. It prints Go's benchmark format. docs/design/liveness.md has a run.
//
// It is a separate module, so that the product does not depend on memberlist.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	systems, faults []string
	nodes           []int
	rounds          int
	watch           time.Duration
	hog, nice       bool
}

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "node" || os.Args[1] == "hog") {
		if err := child(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "liveness:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	systems := flag.String("systems", strings.Join(allSystems, ","), "what to measure")
	faults := flag.String("faults", "power-off,link-cut", "power-off, link-cut, node-network (link-cut while memberlist uses the node network)")
	nodes := flag.String("nodes", "3,10", "how many nodes")
	flag.IntVar(&o.rounds, "rounds", 20, "rounds per fault; 0 leaves them out")
	flag.DurationVar(&o.watch, "watch", 30*time.Second, "how long to watch for false alarms; 0 leaves it out")
	flag.BoolVar(&o.hog, "hog", true, "watch a second time with every core busy twice")
	flag.BoolVar(&o.nice, "nice", false, "leave the processes the right to raise their priority")
	flag.Parse()
	o.systems, o.faults = strings.Split(*systems, ","), strings.Split(*faults, ",")
	for _, n := range strings.Split(*nodes, ",") {
		count, err := strconv.Atoi(n)
		if err != nil || count < 2 || count > 99 {
			fmt.Fprintf(os.Stderr, "liveness: -nodes %q: give numbers from 2 to 99\n", n)
			os.Exit(2)
		}
		o.nodes = append(o.nodes, count)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "liveness:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/liveness\n", runtime.GOOS, runtime.GOARCH)
	for _, n := range o.nodes {
		for _, system := range o.systems {
			for _, fault := range o.faults {
				if o.rounds == 0 {
					break
				}
				if err := measure(ctx, o, system, fault, n); err != nil {
					return fmt.Errorf("%s, %d nodes, %s: %w", system, n, fault, err)
				}
			}
			for _, busy := range []bool{false, true} {
				if o.watch == 0 || busy && !o.hog {
					continue
				}
				if err := alarms(ctx, o, system, n, busy); err != nil {
					return fmt.Errorf("%s, %d nodes, false alarms: %w", system, n, err)
				}
			}
		}
	}
	return nil
}

const (
	// patience is the timeout until the nodes have found one another.
	patience = 30 * time.Second
	// giveUp is the timeout for the detection of a death.
	giveUp = 5 * time.Second
)

// measure fails one node after the other and records the detection time of each of the others.
func measure(ctx context.Context, o options, system, fault string, n int) error {
	network := "lan"
	if fault == "node-network" {
		network, fault = "mgmt", "link-cut"
	}
	lab, err := newLab(n, system, network, o.nice)
	if err != nil {
		return err
	}
	defer lab.close()
	var took []time.Duration
	missed := 0
	for round := range o.rounds {
		if err := lab.settle(ctx); err != nil {
			return err
		}
		victim := round % n
		// At varying phases between two heartbeats.
		if err := lab.idle(ctx, time.Duration(round*37%100)*time.Millisecond); err != nil {
			return err
		}
		start, err := lab.cut(victim, fault == "power-off", true)
		if err != nil {
			return err
		}
		lab.waitDead(ctx, victim, giveUp)
		for i, node := range lab.nodes {
			if i == victim {
				continue
			}
			if when := node.deadSince(name(victim)); when > 0 {
				took = append(took, time.Duration(when-start))
			} else {
				missed++
			}
		}
		if _, err := lab.cut(victim, fault == "power-off", false); err != nil {
			return err
		}
	}
	what := fault
	if network == "mgmt" {
		what += "-by-node-network"
	}
	line := fmt.Sprintf("BenchmarkLiveness/system=%s/nodes=%d/fault=%s %d", system, n, what, o.rounds)
	if len(took) > 0 {
		slices.Sort(took)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		at := func(share float64) time.Duration { return took[min(len(took)-1, int(share*float64(len(took))))] }
		line += fmt.Sprintf(" %.1f p50-ms %.1f p99-ms %.1f max-ms", ms(at(.5)), ms(at(.99)), ms(took[len(took)-1]))
	}
	fmt.Printf("%s %d unnoticed\n", line, missed)
	return nil
}

// alarms counts the nodes found dead while none is.
func alarms(ctx context.Context, o options, system string, n int, busy bool) error {
	lab, err := newLab(n, system, "lan", o.nice)
	if err != nil {
		return err
	}
	defer lab.close()
	if err := lab.settle(ctx); err != nil {
		return err
	}
	what := "idle"
	if busy {
		what = "busy"
		if err := lab.hog(2 * runtime.NumCPU()); err != nil {
			return err
		}
	}
	before := lab.deaths()
	if err := lab.idle(ctx, o.watch); err != nil {
		return err
	}
	fmt.Printf("BenchmarkLiveness/system=%s/nodes=%d/watch=%s 1 %.0f watched-s %d false-alarms %.2f cpu-ms/s/node\n",
		system, n, what, o.watch.Seconds(), lab.deaths()-before, lab.cpu())
	return nil
}

var errEnded = errors.New("a node's process has ended")
