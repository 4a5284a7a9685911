package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// group is what the ways of forwarding are compared for.
type group struct {
	size        int
	connections string
}

// sample is one measurement.
type sample struct {
	group
	mode          string
	load          probe.Load
	duration      time.Duration // of the load
	cpu           cpuTime
	owner, others uint64 // bytes
}

// figure is a column of a row in Go's benchmark format.
type figure struct {
	unit string
	of   func(sample) float64
}

var figures = []figure{
	{"req/s", func(s sample) float64 { return float64(s.load.InTime) / s.duration.Seconds() }},
	{"p50-ms", func(s sample) float64 { return s.load.P50.Seconds() * 1e3 }},
	{"p99-ms", func(s sample) float64 { return s.load.P99.Seconds() * 1e3 }},
	{"max-ms", func(s sample) float64 { return s.load.Max.Seconds() * 1e3 }},
	{"cpu-us/op", func(s sample) float64 { return s.each((s.cpu.user + s.cpu.kernel).Seconds() * 1e6) }},
	{"kernel-us/op", func(s sample) float64 { return s.each(s.cpu.kernel.Seconds() * 1e6) }},
	{"owner-B/op", func(s sample) float64 { return s.each(float64(s.owner)) }},
	{"others-B/op", func(s sample) float64 { return s.each(float64(s.others)) }},
}

// each divides by the requests.
func (s sample) each(total float64) float64 { return total / float64(s.load.Requests) }

// byteSize returns a number of bytes as text: 1kB for 1000.
func byteSize(n int) string {
	unit := "B"
	for _, larger := range []string{"kB", "MB"} {
		if n%1000 != 0 {
			break
		}
		n, unit = n/1000, larger
	}
	return fmt.Sprint(n, unit)
}

// row returns a sample as a line of Go's benchmark format.
func (s sample) row() string {
	var b strings.Builder
	fmt.Fprintf(&b, "BenchmarkDirect/size=%s/connections=%s/forwarding=%s-%d\t%d\t%.0f ns/op", byteSize(s.size), s.connections, s.mode,
		runtime.GOMAXPROCS(0), s.load.Requests, float64(s.duration)/float64(s.load.InTime))
	for _, f := range figures {
		fmt.Fprintf(&b, "\t%s %s", number(f.of(s)), f.unit)
	}
	fmt.Fprintf(&b, "\t%d failed", s.load.Failed)
	return b.String()
}

// number returns three significant digits and all before the point.
func number(x float64) string {
	if x == 0 {
		return "0"
	}
	return fmt.Sprintf("%.*f", max(0, 2-int(math.Floor(math.Log10(math.Abs(x))))), x)
}

// table writes the medians of all rounds, and the ratio of each round's "direct" to its "pod": the median, with the
// least and the greatest. The samples of a group and mode are in the order of the rounds.
func table(w io.Writer, samples []sample) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.Debug)
	line := func(cells ...string) { fmt.Fprintln(t, "| "+strings.Join(cells, "\t ")+"\t") }
	line("answer", "connections", "figure", pod, direct, direct+"/"+pod)
	line("---", "---", "---", "---", "---", "---")
	var groups []group
	of := map[group]map[string][]sample{}
	for _, s := range samples {
		if of[s.group] == nil {
			groups = append(groups, s.group)
			of[s.group] = map[string][]sample{}
		}
		of[s.group][s.mode] = append(of[s.group][s.mode], s)
	}
	for _, g := range groups {
		for _, f := range figures {
			p, d := values(of[g][pod], f), values(of[g][direct], f)
			line(byteSize(g.size), g.connections, f.unit, middle(p), middle(d), ratio(p, d))
		}
	}
	return t.Flush()
}

func values(samples []sample, f figure) (all []float64) {
	for _, s := range samples {
		all = append(all, f.of(s))
	}
	return all
}

// middle returns the median as text; empty of none.
func middle(all []float64) string {
	if len(all) == 0 {
		return ""
	}
	return number(median(all))
}

func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// ratio compares the values of each round that has both.
func ratio(p, d []float64) string {
	var all []float64
	for i := range min(len(p), len(d)) {
		all = append(all, d[i]/p[i])
	}
	if len(all) == 0 {
		return ""
	}
	if len(all) == 1 {
		return fmt.Sprintf("%.2f", all[0])
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(all), slices.Min(all), slices.Max(all))
}
