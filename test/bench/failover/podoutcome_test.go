package main

import (
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

var began = time.Unix(1000, 0)

// at returns a result of a request sent that many milliseconds after the fault, with that duration.
func at(sent, took int, pod, err string) probe.Result {
	ms := time.Millisecond
	return probe.Result{Sent: began.Add(time.Duration(sent) * ms), Took: time.Duration(took) * ms, Pod: pod, Error: err}
}

func TestRequestsOf(t *testing.T) {
	healed := began.Add(100 * time.Millisecond)
	have := requestsOf([]probe.Result{
		at(-50, 1, "", "dial: refused"), // had failed before the fault
		at(-10, 1, "a", ""),             // had been answered before the fault
		at(-5, 90, "", "dial: timeout"), // in progress
		at(0, 1, "a", ""),
		at(5, 90, "", "dial: timeout"),
		at(40, 3, "", "read: reset"),
		at(45, 1, "b", ""),
		at(95, 10, "", "read: reset"), // caused by the repair
		at(100, 1, "", "dial: timeout"),
	}, 5*time.Millisecond, began, healed)
	want := requests{tried: 5, failed: 3, last: 40 * time.Millisecond, returned: 2, late: 30 * time.Millisecond}
	if have != want {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
	have = requestsOf([]probe.Result{at(-5, 1, "a", ""), at(0, 1, "a", "")}, 5*time.Millisecond, began, healed)
	if have != (requests{tried: 1}) {
		t.Errorf("without a failure: %+v", have)
	}
}

func TestPods(t *testing.T) {
	have := pods([]probe.Result{
		at(-1, 1, "a", ""), at(0, 1, "b", ""), at(9, 5, "c", ""), at(9, 5, "", "dial: timeout"), at(10, 1, "d", ""),
	}, began, began.Add(10*time.Millisecond))
	if len(have) != 2 || !have["b"] || !have["c"] {
		t.Error(have)
	}
}

func TestConnectionsOf(t *testing.T) {
	conn := func(n int, r probe.Result) probe.Result { r.Conn = n; return r }
	have := connectionsOf([]probe.Result{
		conn(1, at(-200, 1, "lives", "")), conn(1, at(0, 1, "lives", "")), // stays
		conn(2, at(-200, 1, "lives", "")), conn(2, at(50, 20, "", "read: reset")),
		conn(3, at(-200, 1, "lives", "")), conn(3, at(50, 950, "", "timeout")), // silent
		conn(4, at(-200, 1, "dies", "")), conn(4, at(-1, 500, "", "read: reset")),
		conn(5, at(-200, 1, "dies", "")), conn(5, at(-1, 300, "", "read: reset")),
		conn(6, at(-200, 1, "dies", "")), conn(6, at(-1, 1001, "", "timeout")), // silent
		conn(7, at(-200, 1, "dies", "")), conn(7, at(-100, 50, "", "read: reset")), // broken before the fault
		conn(8, at(1, 1, "lives", "")), conn(8, at(50, 1, "", "read: reset")), // established after the fault
	}, func(pod string) bool { return pod == "dies" }, began, began.Add(time.Second))
	resets := []time.Duration{299 * time.Millisecond, 499 * time.Millisecond}
	if have.conns != 6 || have.broken != 2 || have.dead != 3 || !slices.Equal(have.resets, resets) {
		t.Errorf("%+v", have)
	}
}
