// Command starved counts stalls and moves of three speakers with as little CPU as a Pod with a small CPU request on a
// busy node. Each is in a cgroup with the shares of its request, next to one with busy loops. It needs root, a writable
// cgroup v1 hierarchy cpu, and the lab.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

type options struct {
	shares, hogShares, hogs, services int
	watch                             time.Duration
	env                               string
	normal                            bool
}

func main() {
	var o options
	flag.IntVar(&o.shares, "shares", 51, "cpu.shares of each speaker: 1024 for a request of one core")
	flag.IntVar(&o.hogShares, "hog-shares", 1024, "cpu.shares of the busy loops together")
	flag.IntVar(&o.hogs, "hogs", 13, "busy loops")
	flag.IntVar(&o.services, "services", 6, "Services, each with an address, at most 16")
	flag.DurationVar(&o.watch, "watch", 5*time.Minute, "how long to watch")
	flag.StringVar(&o.env, "env", "", "environment of the speakers: K=V,...")
	flag.BoolVar(&o.normal, "normal", false, "drop CAP_SYS_NICE: the liveness threads have scheduling class Normal")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "starved:", err)
		os.Exit(1)
	}
}

const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [192.0.2.128/28]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
`

func run(ctx context.Context, o options) (err error) {
	c, err := lab.New(ctx, lab.Config{Kernel: lab.Native})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if _, err := c.StartCCM(ctx, "--leader-elect=false"); err != nil {
		return err
	}
	text := objects
	for i := range o.services {
		text += fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}\n", i)
	}
	if err := c.ApplyYAML(ctx, text); err != nil {
		return err
	}
	if _, err := c.AddPod(ctx, lab.PodSpec{Name: "web", Node: c.Nodes[0], Labels: map[string]string{"app": "web"}}); err != nil {
		return err
	}
	groups, err := makeGroups(o, len(c.Nodes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, groups.remove()) }()
	var speakers []*process.Process
	for i, n := range c.Nodes {
		argv, err := n.SpeakerArgv(ctx)
		if err != nil {
			return err
		}
		if o.normal {
			dropped := false
			for i, arg := range argv {
				argv[i] = strings.Replace(arg, ",+sys_nice", "", 1)
				dropped = dropped || argv[i] != arg
			}
			if !dropped {
				return fmt.Errorf("-normal: no capability SYS_NICE to drop in %q", argv)
			}
		}
		cmd := host.Cmd{Argv: argv}
		if o.env != "" {
			cmd.Env = strings.Split(o.env, ",")
		}
		p, err := n.Start(ctx, "ironlb-speaker", cmd)
		if err != nil {
			return err
		}
		defer p.Kill()
		if err := os.WriteFile(filepath.Join(groups.pods[i], "cgroup.procs"), []byte(strconv.Itoa(p.Pid())), 0o644); err != nil {
			return err
		}
		speakers = append(speakers, p)
	}
	if err := c.Eventually(ctx, 2*time.Minute, "every address has an owner", func(ctx context.Context) error {
		owners, err := owners(ctx, c)
		if err == nil && len(owners) != o.services {
			err = fmt.Errorf("%d have one", len(owners))
		}
		return err
	}); err != nil {
		return err
	}
	for i, p := range speakers {
		classes, err := classes(p.Pid())
		if err != nil {
			return err
		}
		fmt.Printf("speaker %d: threads by class %v\n", i+1, classes)
	}
	stopHogs, err := groups.hog(o.hogs)
	if err != nil {
		return err
	}
	defer stopHogs()
	before, err := figures(ctx, c)
	if err != nil {
		return err
	}
	moves, last := 0, map[string]string{}
	for end := time.Now().Add(o.watch); time.Now().Before(end); {
		now, err := owners(ctx, c)
		if err != nil {
			return err
		}
		for vip, node := range now {
			if was := last[vip]; was != "" && was != node {
				moves++
			}
			last[vip] = node
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	after, err := figures(ctx, c)
	if err != nil {
		return err
	}
	hours := o.watch.Hours()
	fmt.Printf("shares %d, hogs %d of %d shares, normal %t, env %q, %v: moves %d (%.0f an hour)\n", o.shares, o.hogs, o.hogShares, o.normal, o.env, o.watch, moves, float64(moves)/hours)
	for _, name := range wanted {
		fmt.Printf("  %-62s %.3f\n", name, after[name]-before[name])
	}
	return nil
}

// owners returns the owner of each VirtualIP that has one.
func owners(ctx context.Context, c *lab.Cluster) (map[string]string, error) {
	var all v1alpha1.VirtualIPList
	if err := c.Objects.List(ctx, &all); err != nil {
		return nil, err
	}
	owners := map[string]string{}
	for _, v := range all.Items {
		if v.Status.Node != "" {
			owners[v.Name] = v.Status.Node
		}
	}
	return owners, nil
}

var wanted = []string{
	"ironlb_liveness_fences_total", "ironlb_liveness_false_deaths_total", "ironlb_liveness_tick_late_seconds_count",
	`ironlb_liveness_tick_late_seconds_bucket{le="0.0244140625"}`, `ironlb_liveness_tick_late_seconds_bucket{le="0.06103515625"}`,
	`ironlb_liveness_tick_late_seconds_bucket{le="0.152587890625"}`, `ironlb_liveness_tick_late_seconds_bucket{le="0.3814697265625"}`,
	"ironlb_failover_detection_seconds_count", "process_cpu_seconds_total", "go_gc_duration_seconds_count",
}

// figures returns the sums over all speakers.
func figures(ctx context.Context, c *lab.Cluster) (map[string]float64, error) {
	sums := map[string]float64{}
	for _, n := range c.Nodes {
		out, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "60", "http://127.0.0.1:7950/metrics")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
				if v, err := strconv.ParseFloat(value, 64); err == nil {
					sums[name] += v
				}
			}
		}
	}
	return sums, nil
}

// classes counts the threads of a process by scheduling policy.
func classes(pid int) (map[string]int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/sched", pid))
	counts := map[string]int{}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "policy" {
				counts[map[string]string{"0": "NORMAL", "6": "DEADLINE"}[strings.TrimSpace(value)]]++
			}
		}
	}
	return counts, err
}

// cgroups below one parent, in the kubelet's layout.
type cgroups struct {
	parent, load string
	pods         []string
}

func makeGroups(o options, pods int) (g cgroups, err error) {
	g.parent = fmt.Sprintf("/sys/fs/cgroup/cpu/ironlb-test-%d", os.Getpid())
	g.load = filepath.Join(g.parent, "load")
	for i := range pods {
		g.pods = append(g.pods, filepath.Join(g.parent, fmt.Sprintf("pod%d", i+1)))
	}
	shares := map[string]int{g.parent: 2048, g.load: o.hogShares}
	for _, pod := range g.pods {
		shares[pod] = o.shares
	}
	for _, dir := range append([]string{g.parent, g.load}, g.pods...) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return g, errors.Join(err, g.remove())
		}
		if err := os.WriteFile(filepath.Join(dir, "cpu.shares"), []byte(strconv.Itoa(shares[dir])), 0o644); err != nil {
			return g, errors.Join(err, g.remove())
		}
	}
	return g, nil
}

// remove removes the groups after their processes have ended.
func (g cgroups) remove() error {
	var errs []error
	for _, dir := range append(append([]string{g.load}, g.pods...), g.parent) {
		var err error
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if err = os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
				err = nil
				break
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// hog keeps the cores busy.
func (g cgroups) hog(n int) (stop func(), err error) {
	var all []*exec.Cmd
	stop = func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	for range n {
		cmd := exec.Command("sh", "-c", `echo $$ > "$0"; while :; do :; done`, filepath.Join(g.load, "cgroup.procs"))
		if err := host.StartLasting(cmd); err != nil {
			stop()
			return nil, err
		}
		all = append(all, cmd)
	}
	return stop, nil
}
