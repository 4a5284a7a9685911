// Command ccm measures ironlb-ccm on a real etcd and kube-apiserver, and a bare load generator that makes the same
// writes without any logic: the API server's own limit. It prints Go's benchmark format, for benchstat, on standard
// output, and long steps on standard error. It needs root.
//
//	svc/s       Services per second, from the first create (delete) until the last has its address (is gone)
//	settled-s   seconds until the last write of all, Events and VirtualIPs included
//	of-bare     settled-s of the bare generator, divided by that of ironlb-ccm
//	cpu-s       CPU seconds of ironlb-ccm
//	peak-MB     its largest resident memory since its start
//	svc-writes  at a restart: writes to the Services that have their address; writes: all, before a new Service
//	one-more-s  at a restart: seconds from the create of a new Service until it has its address
//	writes/svc  writes of its account, Events included, by the API server's audit log
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	services, restart, count int
	kinds                    []string
	profile                  string
	progress                 io.Writer
}

func main() {
	o := options{progress: os.Stderr}
	var kinds string
	flag.IntVar(&o.services, "services", 2000, "Services in a burst")
	flag.IntVar(&o.restart, "restart", 5000, "assigned Services when ironlb-ccm is restarted; 0: leave that out")
	flag.IntVar(&o.count, "count", 1, "how often to measure everything")
	flag.StringVar(&kinds, "kinds", "classless,class", "Services without a class, and of class ironlb.io/lb")
	flag.StringVar(&o.profile, "profile", "", "a folder for CPU and heap profiles of ironlb-ccm")
	flag.Parse()
	for kind := range strings.SplitSeq(kinds, ",") {
		switch kind {
		case "classless", "class":
			o.kinds = append(o.kinds, kind)
		case "":
		default:
			fmt.Fprintf(os.Stderr, "-kinds: %q is neither classless nor class\n", kind)
			os.Exit(2)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/ccm\n", runtime.GOOS, runtime.GOARCH)
	for range o.count {
		for _, kind := range o.kinds {
			if err := bursts(ctx, o, kind); err != nil {
				return err
			}
		}
		if o.restart > 0 {
			if err := restart(ctx, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// metrics are the figures of a result by unit.
type metrics map[string]float64

// result prints one line of Go's benchmark format.
func result(name string, took time.Duration, m metrics) {
	fmt.Printf("Benchmark%s-%d\t1\t%d ns/op", name, runtime.GOMAXPROCS(0), took.Nanoseconds())
	for _, unit := range slices.Sorted(maps.Keys(m)) {
		fmt.Printf("\t%.4g %s", m[unit], unit)
	}
	fmt.Println()
}

// closing joins the error of a close to the existing one.
func closing(err *error, close func() error) { *err = errors.Join(*err, close()) }
