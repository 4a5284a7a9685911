package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observed is a subject in its own cgroup.
type observed struct {
	subject
	group cgroup
}

// sample is what a process has used so far.
type sample struct {
	at      time.Time
	cpu     time.Duration // with its children
	threads map[int]thread
}

func (o observed) sample() (s sample, err error) {
	s.at = time.Now()
	if s.cpu, err = o.group.cpu(); err == nil {
		s.threads, err = threads(o.p.Pid())
	}
	if err != nil {
		return s, fmt.Errorf("%s on %s: %w", o.name, o.node, err)
	}
	return s, nil
}

// measure waits until the processes are idle, measures them for the window and prints the results.
func (b *bench) measure(ctx context.Context, subjects []subject) (err error) {
	var all []observed
	defer func() {
		for _, o := range all {
			if o.p.Running() {
				err = errors.Join(err, o.p.Kill())
			}
			err = errors.Join(err, o.group.remove())
		}
	}()
	for _, s := range subjects {
		group, err := enclose(s.p.Pid())
		if err != nil {
			return fmt.Errorf("observe %s on %s: %w", s.name, s.node, err)
		}
		all = append(all, observed{s, group})
	}
	if err := b.settle(ctx, all); err != nil {
		return err
	}
	return b.window(ctx, all)
}

// The conditions of settle.
const (
	settleStep   = 10 * time.Second
	writesPerSec = 5
	fall         = 0.8
)

// settle waits until the processes are idle, at most for -limit.
func (b *bench) settle(ctx context.Context, all []observed) error {
	began := time.Now()
	var before []time.Duration // CPU time of all processes in the last steps without many writes
	for {
		writes, used, err := b.step(ctx, all)
		if err != nil {
			return err
		}
		if before = append(before, used); writes > writesPerSec*settleStep.Seconds() {
			before = before[:0]
		}
		if settled(before) {
			progress("%s with %d Services: idle after another %v", b.name, b.services, time.Since(began).Round(time.Second))
			return nil
		}
		if time.Since(began) > b.o.limit {
			progress("%s with %d Services: NOT IDLE after %v: %.1f writes per second, %.1f %% of a core in the last %v; measured in this state",
				b.name, b.services, b.o.limit, writes/settleStep.Seconds(), percent(used, settleStep), settleStep)
			return nil
		}
	}
}

// settled reports whether the CPU time of consecutive steps no longer falls.
func settled(steps []time.Duration) bool {
	n := len(steps)
	return n >= 3 && float64(steps[n-1]) >= fall*float64(steps[n-2]) && float64(steps[n-2]) >= fall*float64(steps[n-3])
}

// step returns the number of writes to the API server and the CPU time of all processes in one step.
func (b *bench) step(ctx context.Context, all []observed) (writes float64, used time.Duration, err error) {
	from, before, err := b.totals(ctx, all)
	if err != nil {
		return 0, 0, err
	}
	if err := wait(ctx, settleStep); err != nil {
		return 0, 0, err
	}
	to, after, err := b.totals(ctx, all)
	return float64(to - from), after - before, err
}

// totals returns the revision of the API server's store, which each write increases, and the CPU time of all processes.
func (b *bench) totals(ctx context.Context, all []observed) (revision int64, cpu time.Duration, err error) {
	nodes, err := b.c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, 0, err
	}
	if revision, err = strconv.ParseInt(nodes.ResourceVersion, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("revision of the API server's store: %w", err)
	}
	for _, o := range all {
		used, err := o.group.cpu()
		if err != nil {
			return 0, 0, err
		}
		cpu += used
	}
	return revision, cpu, b.c.Err()
}

// window measures all processes in the same window.
func (b *bench) window(ctx context.Context, all []observed) error {
	progress("%s with %d Services: measuring for %v", b.name, b.services, b.o.window)
	before := make([]sample, len(all))
	for i, o := range all {
		var err error
		if before[i], err = o.sample(); err != nil {
			return err
		}
	}
	calls, err := b.observe(ctx, all)
	if err != nil {
		return err
	}
	for i, o := range all {
		after, err := o.sample()
		if err != nil {
			return err
		}
		if err := b.result(o, before[i], after); err != nil {
			return err
		}
		if b.o.threads && o.name == speakerName {
			printThreads(os.Stderr, o, before[i], after, calls[o.p.Pid()])
		}
	}
	return b.c.Err()
}

// observe waits for the window; with -threads it returns the system calls seen by process.
func (b *bench) observe(ctx context.Context, all []observed) (map[int]calls, error) {
	if !b.o.threads {
		return nil, wait(ctx, b.o.window)
	}
	seen := map[int]calls{}
	for end := time.Now().Add(b.o.window); time.Now().Before(end); {
		if err := wait(ctx, min(time.Second, time.Until(end))); err != nil {
			return nil, err
		}
		for _, o := range all {
			if o.name != speakerName {
				continue
			}
			if seen[o.p.Pid()] == nil {
				seen[o.p.Pid()] = calls{}
			}
			seen[o.p.Pid()].sample(o.p.Pid())
		}
	}
	return seen, nil
}

// result prints the line of a process.
func (b *bench) result(o observed, before, after sample) error {
	took := after.at.Sub(before.at)
	var yields uint64
	for tid, t := range after.threads {
		yields += t.yields - before.threads[tid].yields
	}
	rss, err := megabytes(o.p.Pid(), "status", "VmRSS")
	if err != nil {
		return err
	}
	pss, err := megabytes(o.p.Pid(), "smaps_rollup", "Pss")
	if err != nil {
		return err
	}
	cpu := after.cpu - before.cpu
	fmt.Printf("BenchmarkIdle/%s/%d/%s-%d\t%.0f\t%.0f ns/op\t%.3f cpu-%%\t%.1f switches/s\t%.1f RSS-MB\t%.1f Pss-MB\n",
		o.name, b.services, o.node, runtime.GOMAXPROCS(0), took.Seconds(), float64(cpu.Nanoseconds())/took.Seconds(),
		percent(cpu, took), float64(yields)/took.Seconds(), rss, pss)
	return nil
}

func percent(cpu, of time.Duration) float64 { return 100 * cpu.Seconds() / of.Seconds() }

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
