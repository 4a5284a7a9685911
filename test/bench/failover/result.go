package main

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/ironlb/ironlb/test/lab/steady"
)

// outcome of a round.
type outcome struct {
	node        string // the node with the fault
	addr        netip.Addr
	fault, back steady.Report // from the fault until the client was served again, and from then until the state had settled
	recovered   bool
	duplicates  int
	moves       int
}

// String returns the outcome as one readable line.
func (o outcome) String() string {
	s := fmt.Sprintf("%s held %v: %s; %d duplicate answers, %d moves", o.node, o.addr, o.fault, o.duplicates, o.moves)
	if o.back.Outage > steadyGap || o.back.Failed > 0 {
		s += fmt.Sprintf("; on the return: %s", o.back)
	}
	if !o.recovered {
		s += "; NOT RECOVERED before the fault ended"
	}
	return s
}

// result prints the rounds of one fault as a line of Go's benchmark format.
func result(name string, all []outcome) {
	var outages, backs []time.Duration
	var sum time.Duration
	m := map[string]float64{}
	n := float64(len(all))
	for _, o := range all {
		outages, backs = append(outages, o.fault.Outage), append(backs, o.back.Outage)
		sum += o.fault.Outage
		m["failed-conns/op"] += float64(o.fault.Failed+o.back.Failed) / n
		m["duplicates/op"] += float64(o.duplicates) / n
		m["moves/op"] += float64(o.moves) / n
		m["client-late-ms"] = max(m["client-late-ms"], ms(o.fault.Late))
		if !o.recovered {
			m["not-recovered"]++
		}
	}
	m["p50-ms"], m["p99-ms"], m["max-ms"] = ms(quantile(outages, 0.5)), ms(quantile(outages, 0.99)), ms(quantile(outages, 1))
	m["return-max-ms"] = ms(quantile(backs, 1))
	fmt.Printf("BenchmarkFailover/%s-%d\t%d\t%d ns/op", name, runtime.GOMAXPROCS(0), len(all), sum.Nanoseconds()/int64(len(all)))
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
