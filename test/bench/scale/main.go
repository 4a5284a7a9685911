// Command scale measures one ironlb-speaker with many Services of four endpoints, and one of a thousand: its start, its
// memory and its CPU time while idle, one changed endpoint, many changed endpoints, and how soon damage by another
// program is repaired. It runs alone in a network namespace, with nftables and serviceProxy, and owns every address: no
// other node is alive. Its API server is part of this command and answers from memory, so that nothing but the speaker
// is measured. The results are in Go's benchmark format, for benchstat, on standard output. It needs root.
//
//	start-s    seconds from the start of the process until /readyz is OK
//	cpu-s      CPU seconds of the start, with child processes
//	peak-MB    largest resident memory of the process until it was idle; tree-MB: of it and its child processes
//	cpu-%      percent of a core while idle, with child processes
//	RSS-MB     resident memory while idle; Pss-MB: its part of shared pages counts once; heap-MB: live objects of Go
//	p50-ms     from the write of the EndpointSlice until the first change of the kernel's table; the new endpoint may
//	           follow later, after its check (endpointChecks); p99-ms likewise
//	cpu-ms     CPU time of one change
//	behind-s   at a constant rate of changes: from the last one until it is programmed
//	all-s      of as many changes at once as one of a hundred nodes has endpoints (Burst): from the first one until all
//	           are programmed; cpu-ms: CPU time of all
//	repair-s   from the damage until it is repaired
//
//	go run ./test/bench/scale -services 1000,5000,10000
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
)

type options struct {
	sizes   []int
	speaker string
	window  time.Duration
	limit   time.Duration
	changes int
	rate    int
	churn   time.Duration
	keep    string
	inside  bool
}

func main() {
	o, err := parse()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		if o.inside {
			err = run(ctx, o)
		} else {
			err = enclosed(ctx, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// mostServices is the number of Services that the ranges of addresses allow.
const mostServices = 20000

func parse() (o options, err error) {
	sizes := flag.String("services", "1000,5000,10000", "numbers of Services")
	flag.StringVar(&o.speaker, "speaker", "", "the program to measure (default: built from this checkout)")
	flag.DurationVar(&o.window, "window", 30*time.Second, "how long the idle process is measured")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "how long the process may take to be ready")
	flag.IntVar(&o.changes, "changes", 100, "changed endpoints to measure, one after the other")
	flag.IntVar(&o.rate, "rate", 200, "changed endpoints per second, at a constant rate")
	flag.DurationVar(&o.churn, "churn", time.Minute, "how long endpoints change at that rate")
	flag.StringVar(&o.keep, "keep", "", "a folder for the log and the metrics of each process")
	flag.BoolVar(&o.inside, "inside", false, "run in this network namespace, which must be a new one")
	flag.Parse()
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > mostServices {
			return o, fmt.Errorf("-services %q: give numbers from 1 to %d", *sizes, mostServices)
		}
		o.sizes = append(o.sizes, n)
	}
	if o.window < time.Second || o.limit < time.Second || o.changes < 0 || o.rate < 1 || o.churn < 0 || o.churn > 0 && o.churn < time.Second {
		return o, errors.New("-window and -limit are from 1s, -changes from 0, -rate from 1, -churn 0 or from 1s")
	}
	return o, nil
}

// enclosed runs this command in a new network namespace.
func enclosed(ctx context.Context, o options) error {
	if o.speaker == "" {
		dir, err := os.MkdirTemp("", "bench-scale")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.speaker = filepath.Join(dir, "ironlb-speaker")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", o.speaker, "./cmd/ironlb-speaker")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build ironlb-speaker: %w", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"-inside", "-speaker", o.speaker}, os.Args[1:]...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
