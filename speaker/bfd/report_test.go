package bfd

import (
	"fmt"
	"testing"

	"github.com/ironlb/ironlb/speaker/view"
)

// TestReportsKeepFailures: while the queue is full, the reports of a session are merged, and its failure stays.
func TestReportsKeepFailures(t *testing.T) {
	r := newReports()
	for i := range maxReports {
		r.put(report{name: fmt.Sprint(i)})
	}
	up, down := Status{State: view.BFDUp}, Status{State: view.BFDDown}
	for range 3 {
		r.add(map[string]Status{"s": up, "t": up})
		r.add(map[string]Status{"s": down})
		r.add(map[string]Status{"s": up})
		r.gone("t")
	}
	have := ""
	queue := r.take()
	for _, one := range queue[maxReports:] {
		have += fmt.Sprintf("%s %v %v, ", one.name, one.status.State, one.gone)
	}
	want := fmt.Sprintf("s %v false, s %v false, t %v true, ", view.BFDDown, view.BFDUp, Status{}.State)
	if have != want {
		t.Errorf("pending %s want %s", have, want)
	}
}
