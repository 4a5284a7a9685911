// Command bgp measures how soon two routers, BIRD and FRR, receive a cluster's BGP announcements, in one lab on this
// machine's kernel: three nodes on a real control plane, each with ironlb-bgpd and a speaker.
//
// The parts:
//
//	update    an EndpointSlice is written that adds or removes a ready endpoint on a node, for a Service with policy
//	          Local: until the node's UPDATE is on the wire at the router (the kernel's time stamp of the packet), and
//	          until the router's kernel has changed its route
//	cut       a node's port is detached from the LAN switch, without a change of carrier: until no route of the
//	          router's kernel leads to it. bfd: a BFDProfile of 3 x 100 ms; bfd-gr: the same with graceful restart;
//	          hold: no BFD, a hold time of 9 s
//	prefixes  a full set of prefixes is passed to a newly started ironlb-bgpd: until both routers' kernels have all,
//	          the CPU time for it, and the maximum memory of parent and children; then until all are withdrawn
//
// All times include the request to the API server, the command to the switch, or the Set, because they begin before it.
// For BFD alone with busy cores see test/bench/bfd.
//
// Results are in Go's benchmark format on standard output, with a line for each round on standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	parts, modes            []string
	updates, rounds, tables int
	prefixes                int
	logs                    string
}

var (
	parts = []string{"update", "cut", "prefixes"}
	modes = []string{"bfd", "bfd-gr", "hold"}
)

func main() {
	var o options
	some := flag.String("parts", strings.Join(parts, ","), "what is measured")
	how := flag.String("cut", strings.Join(modes, ","), "how a cut is found")
	flag.IntVar(&o.updates, "updates", 100, "rounds of update")
	flag.IntVar(&o.rounds, "rounds", 20, "rounds of each kind of cut")
	flag.IntVar(&o.tables, "tables", 3, "rounds of prefixes")
	flag.IntVar(&o.prefixes, "prefixes", 10_000, "prefixes of a table")
	flag.StringVar(&o.logs, "logs", "", "a folder to save the lab's logs in")
	flag.Parse()
	o.parts, o.modes = strings.Split(*some, ","), strings.Split(*how, ",")
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (o options) check() error {
	for _, c := range []struct {
		flag        string
		have, known []string
	}{{"-parts", o.parts, parts}, {"-cut", o.modes, modes}} {
		for _, name := range c.have {
			if !slices.Contains(c.known, name) {
				return fmt.Errorf("%s: %q is none of %s", c.flag, name, strings.Join(c.known, ", "))
			}
		}
	}
	if min(o.updates, o.rounds, o.tables, o.prefixes) < 1 || o.prefixes > 65535 {
		return errors.New("-updates, -rounds and -tables are from 1, -prefixes from 1 to 65535")
	}
	return nil
}

// result prints a line of Go's benchmark format: the mean of the times as ns/op, their quantiles, and more.
func result(name string, all []time.Duration, more map[string]float64) {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	fmt.Printf("BenchmarkBGP/%s-%d\t%d\t%d ns/op", name, runtime.GOMAXPROCS(0), len(all), sum.Nanoseconds()/int64(len(all)))
	m := map[string]float64{"p50-ms": ms(quantile(all, 0.5)), "p99-ms": ms(quantile(all, 0.99)), "max-ms": ms(quantile(all, 1))}
	maps.Copy(m, more)
	for _, unit := range slices.Sorted(maps.Keys(m)) {
		fmt.Printf("\t%.4g %s", m[unit], unit)
	}
	fmt.Println()
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quantile returns the nearest rank.
func quantile(all []time.Duration, q float64) time.Duration {
	s := slices.Sorted(slices.Values(all))
	return s[max(0, int(math.Ceil(q*float64(len(s))))-1)]
}
