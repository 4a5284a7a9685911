package main

import (
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"
)

// podOutcome of a round.
type podOutcome struct {
	node        string // the node with the fault
	addr        netip.Addr
	moves       int                 // of the address, until the repair
	lost        int                 // unaffected Pods that received no more new connections
	requests    map[string]requests // by client
	connections connections
}

// String returns the outcome as one readable line.
func (o podOutcome) String() string {
	s := fmt.Sprintf("%s, asked %v, %d moves", o.node, o.addr, o.moves)
	for _, name := range clientNames {
		if f, there := o.requests[name]; there {
			last := f.last.Round(time.Millisecond)
			s += fmt.Sprintf("; %s: %d of %d failed, the last after %s", name, f.failed, f.tried, last)
		}
	}
	c, r := o.connections, o.connections.resets
	s += fmt.Sprintf("; %d connections, %d to Pods that are gone: %d reset", c.conns, c.dead, len(r))
	if len(r) > 0 {
		s += fmt.Sprintf(" after %s to %s", r[0].Round(time.Millisecond), r[len(r)-1].Round(time.Millisecond))
	}
	return s + fmt.Sprintf("; %d others broke; %d Pods lost", c.broken, o.lost)
}

// benchLine is a line of Go's benchmark format.
type benchLine struct {
	strings.Builder
}

func newLine(name string, rounds int, times []time.Duration) *benchLine {
	l := &benchLine{}
	mean := time.Duration(0)
	for _, t := range times {
		mean += t / time.Duration(len(times))
	}
	fmt.Fprintf(l, "BenchmarkPods/%s-%d\t%d\t%d ns/op", name, runtime.GOMAXPROCS(0), rounds, mean.Nanoseconds())
	if len(times) > 0 {
		l.unit("p50-ms", ms(quantile(times, 0.5)))
		l.unit("p99-ms", ms(quantile(times, 0.99)))
		l.unit("max-ms", ms(quantile(times, 1)))
	}
	return l
}

func (l *benchLine) unit(name string, v float64) { fmt.Fprintf(l, "\t%.6g %s", v, name) }

// podResults prints the rounds of one fault, a line for each client and one for the established connections.
func podResults(w io.Writer, name string, all []podOutcome) {
	for _, client := range clientNames {
		var lasts []time.Duration
		var tried, failed, returned int
		var late time.Duration
		for _, o := range all {
			f, there := o.requests[client]
			if !there {
				continue
			}
			lasts = append(lasts, f.last)
			tried, failed, returned, late = tried+f.tried, failed+f.failed, returned+f.returned, max(late, f.late)
		}
		if len(lasts) == 0 {
			continue
		}
		l := newLine(name+"/"+client, len(lasts), lasts)
		l.unit("failed-%", 100*float64(failed)/float64(max(1, tried)))
		l.unit("failed/op", float64(failed)/float64(len(lasts)))
		l.unit("return-failed/op", float64(returned)/float64(len(lasts)))
		l.unit("client-late-ms", ms(late))
		fmt.Fprintln(w, l)
	}
	var firsts, lasts []time.Duration
	var broken, unreset, lost, moves int
	for _, o := range all {
		if k := o.connections.resets; len(k) > 0 {
			firsts, lasts = append(firsts, k[0]), append(lasts, slices.Max(k))
		}
		broken, unreset = broken+o.connections.broken, unreset+o.connections.dead-len(o.connections.resets)
		lost, moves = lost+o.lost, moves+o.moves
	}
	n := float64(len(all))
	l := newLine(name+"/established", len(all), firsts)
	if len(lasts) > 0 {
		l.unit("all-max-ms", ms(slices.Max(lasts)))
	}
	l.unit("unreset/op", float64(unreset)/n)
	l.unit("broken/op", float64(broken)/n)
	l.unit("lost-pods/op", float64(lost)/n)
	l.unit("moves/op", float64(moves)/n)
	fmt.Fprintln(w, l)
}
