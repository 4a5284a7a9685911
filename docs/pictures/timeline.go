package main

import (
	"fmt"
)

// timelineOf draws for how long a client gets no answer after its owner lost power.
func timelineOf(t table) (string, error) {
	rows := []struct{ row, name, note string }{
		{"IronLB, profile `fast`", "IronLB, profile fast", ""},
		{"IronLB, profile `standard`", "IronLB, default", ""},
		{"keepalived", "keepalived, default", ""},
		{"MetalLB", "MetalLB L2, default", "until its speakers notice"},
	}
	const left, top, step, second, seconds = 190, 70, 52, 95, 7
	p := &picture{width: 900, height: 350, title: "The owner of an address loses power: time until the address answers again",
		about: "Median and longest outage that a client measured, for IronLB, keepalived and MetalLB."}
	for s := range seconds + 1 {
		x := left + s*second
		fmt.Fprintf(&p.body, "<line class=\"line\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" opacity=\".35\"/>\n", x, top-10, x, top+4*step)
		p.text(x-8, top+4*step+20, "soft", fmt.Sprintf("%d s", s))
	}
	for i, r := range rows {
		median, err := t.number(r.row, "p50, ms")
		if err != nil {
			return "", err
		}
		longest, err := t.number(r.row, "max, ms")
		if err != nil {
			return "", err
		}
		bar, rest := "bar", "longest"
		if i > 1 {
			bar, rest = "other", "otherlongest"
		}
		y := top + i*step
		p.text(20, y+20, "name", r.name)
		p.rect(left, y, median*second/1000, 28, bar)
		figures := fmt.Sprintf("about %d ms, %s", median, r.note)
		if longest > 0 {
			p.rect(left+median*second/1000, y, (longest-median)*second/1000, 28, rest)
			figures = fmt.Sprintf("median %d ms, longest %d ms", median, longest)
		}
		if x := left + max(median, longest)*second/1000 + 10; x < 600 {
			p.text(x, y+19, "soft", figures)
		} else {
			p.text(left+2, y+44, "soft", figures)
		}
	}
	p.text(20, 322, "soft", "Measured by a client every 5 ms, nodes on one machine: docs/development/performance.md. MetalLB's figure is of another run.")
	return p.String(), nil
}
