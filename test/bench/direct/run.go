package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
)

// attempts of a measurement during which the address moves.
const attempts = 3

// bench is a lab with the Services.
type bench struct {
	options
	cluster *lab.Cluster
	addr    netip.Addr // of the Services
	pids    []int      // processes whose CPU time counts, in addition to the client
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (o options) run(ctx context.Context) (err error) {
	c, err := lab.New(ctx, lab.Config{Nodes: hosts, Kernel: lab.Native, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() {
		if o.logs != "" {
			err = errors.Join(err, c.SaveLogs(o.logs))
		}
		err = errors.Join(err, c.Close())
	}()
	b := &bench{options: o, cluster: c}
	if err := b.start(ctx); err != nil {
		return err
	}
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/direct\n", runtime.GOOS, runtime.GOARCH)
	samples, err := b.measureAll(ctx)
	if len(samples) > 0 {
		fmt.Println()
		err = errors.Join(err, table(os.Stdout, samples))
	}
	return err
}

// load runs the client.
func (b *bench) load(ctx context.Context, mode string, g group, d time.Duration) (probe.Load, error) {
	return b.cluster.Client.Load(ctx, lab.Load{
		Target: netip.AddrPortFrom(b.addr, ports[mode]), Size: g.size, Concurrency: b.concurrency,
		PerConnection: perConnection[g.connections], Duration: d,
	})
}

// forwarded returns an error unless all answers were forwarded in this way: with "direct" each Pod sees the client's
// address, with "pod" and policy Cluster none does.
func (b *bench) forwarded(mode string, l probe.Load) error {
	client := b.cluster.Client.Addr.String()
	want := 0
	if mode == direct {
		want = l.Requests
	}
	if have := l.Clients[client]; have != want {
		return fmt.Errorf("forwarding %s: in %d of %d answers the Pod saw the client's address, want %d: %v", mode, have, l.Requests, want, l.Clients)
	}
	return nil
}

// measureAll measures every group, with the ways of forwarding one after the other.
func (b *bench) measureAll(ctx context.Context) (samples []sample, err error) {
	for round := range b.rounds {
		for _, size := range b.sizes {
			for _, connections := range b.connections {
				for _, mode := range b.modes {
					s, err := b.measure(ctx, group{size, connections}, mode)
					if err != nil {
						return samples, fmt.Errorf("%s, %s connections, %s: %w", byteSize(size), connections, mode, err)
					}
					samples = append(samples, s)
					fmt.Println(s.row())
					progress("round %d of %d: %s, %s connections, %s: %d requests, %d failed %v; of Pods %v", round+1, b.rounds,
						byteSize(size), connections, mode, s.load.Requests, s.load.Failed, s.load.Errors, s.load.Pods)
				}
			}
		}
	}
	return samples, nil
}

// measure measures once. It repeats a measurement during which the address moved to another node.
func (b *bench) measure(ctx context.Context, g group, mode string) (s sample, err error) {
	for range attempts {
		owner, err := neighbor(ctx, b.cluster, b.addr.String())
		if err != nil {
			return s, err
		}
		if s, err = b.once(ctx, g, mode, owner.Name); err != nil {
			return s, err
		}
		after, err := neighbor(ctx, b.cluster, b.addr.String())
		if err != nil {
			return s, err
		}
		if after == owner {
			return s, nil
		}
		progress("the address moved from %s to %s; measuring again", owner.Name, after.Name)
	}
	return s, fmt.Errorf("the address moved during each of %d measurements", attempts)
}

// once runs the client between two readings of all counters.
func (b *bench) once(ctx context.Context, g group, mode, owner string) (s sample, err error) {
	s = sample{group: g, mode: mode, duration: b.duration}
	linksBefore, err := lanBytes(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	cpuBefore, err := readCPU(b.pids)
	if err != nil {
		return s, err
	}
	if s.load, err = b.load(ctx, mode, g, b.duration); err != nil {
		return s, err
	}
	cpu, err := readCPU(b.pids)
	if err != nil {
		return s, err
	}
	links, err := lanBytes(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	if s.load.InTime == 0 {
		return s, fmt.Errorf("no answer in time: %v", s.load.Errors)
	}
	s.cpu = cpu.minus(cpuBefore).plus(cpuTime{user: s.load.User, kernel: s.load.System})
	for name := range links {
		if n := links[name] - linksBefore[name]; name == owner {
			s.owner += n
		} else {
			s.others += n
		}
	}
	return s, b.forwarded(mode, s.load)
}
