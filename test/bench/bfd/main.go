// Command bfd runs speaker/bfd against itself while every core is busy, and counts errors: sessions that went down
// although the peer was alive, and packets that were late on the wire.
//
// Two processes, each in its own network namespace, have two sessions (IPv4 and IPv6) for each of the intervals, all at
// once. The hogs are computing processes of normal priority, two for each core. Both processes share the cores with
// them, so an alarm may be either's fault; a node runs only one of the two.
//
// Lateness is measured on the wire: the time that the gap between two periodic packets of one sender exceeds the
// interval. With the jitter of RFC 5880, 6.8.7, it must never exceed it. The times are the kernel's time stamps, so the
// capture's own delay does not count. silence-max-ms is the longest time between any two packets; the session goes down
// at 3 intervals.
//
// Results are in Go's benchmark format: N is the number of packets. nice=true runs with the right to raise the priority
// (CAP_SYS_NICE), as ironlb-bgpd has it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

type options struct {
	intervals  []time.Duration
	multiplier uint
	watch      time.Duration
	hogs       int
	inside     int
	collect    string
	nice       []bool
}

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "node" || os.Args[1] == "hog") {
		if err := child(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "bfd:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	minutes := flag.Float64("minutes", 2, "how long to watch")
	intervals := flag.String("intervals", "100ms,50ms", "intervals of the sessions, in both directions")
	flag.UintVar(&o.multiplier, "multiplier", 3, "of all sessions")
	flag.IntVar(&o.hogs, "hogs", 2*runtime.NumCPU(), "processes that compute")
	flag.IntVar(&o.inside, "inside", 0, "goroutines in each of the two processes that allocate 2 MB each 100 ms, alongside BFD")
	flag.StringVar(&o.collect, "collect", "rarely", "garbage: rarely, as ironlb-bgpd should, or often, as Go does by itself")
	nice := flag.String("nice", "true", "with the right to go before others (CAP_SYS_NICE): true, false, or both (\"true,false\")")
	flag.Parse()
	o.watch = time.Duration(*minutes * float64(time.Minute))
	for _, text := range strings.Split(*intervals, ",") {
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Millisecond {
			fmt.Fprintf(os.Stderr, "bfd: -intervals %q: give durations of a millisecond and more\n", text)
			os.Exit(2)
		}
		o.intervals = append(o.intervals, d)
	}
	for _, text := range strings.Split(*nice, ",") {
		o.nice = append(o.nice, text == "true")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/bfd\n", runtime.GOOS, runtime.GOARCH)
	for _, nice := range o.nice {
		if err := measure(ctx, o, nice); err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "bfd:", err)
			os.Exit(1)
		}
	}
}

// measure runs one measurement, and prints a line for each interval.
func measure(ctx context.Context, o options, nice bool) error {
	l, err := newLab(o, nice)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.settle(ctx); err != nil {
		return err
	}
	if err := l.hog(o.hogs); err != nil {
		return err
	}
	before := l.downs()
	began := time.Now()
	l.wire.begin()
	select {
	case <-time.After(o.watch):
	case <-ctx.Done(): // the observations so far are reported
	case err := <-l.failed:
		return err
	}
	took := time.Since(began)
	seen := l.wire.end()
	after := l.downs()
	cpu, rss := l.stop()
	for i, interval := range o.intervals {
		s := seen[i]
		alarms := 0
		for name, n := range after {
			if strings.HasPrefix(name, sessionName(i, "")) {
				alarms += int(n - before[name])
			}
		}
		fmt.Printf("BenchmarkBusy/%dx%v/hogs=%d/inside=%d/collect=%s/nice=%v-%d\t%d\t%d alarms\t%.3f late-p50-ms\t%.3f late-p99-ms\t%.3f late-max-ms\t%.3f silence-max-ms\t%.3f cpu-ms/s\t%.1f rss-MB\t%.1f minutes\n",
			o.multiplier, interval, o.hogs, o.inside, o.collect, nice, runtime.GOMAXPROCS(0), len(s.late), alarms, quantile(s.late, .5), quantile(s.late, .99), quantile(s.late, 1),
			float64(s.silence.Microseconds())/1000, cpu.Seconds()*1000/took.Seconds()/2, rss, took.Minutes())
	}
	return ctx.Err()
}
