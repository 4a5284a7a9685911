package main

import (
	"slices"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// requests is the effect of a fault on a client of new connections, or of datagrams each from its own socket.
type requests struct {
	tried, failed int           // of requests that began before the repair
	last          time.Duration // from the fault until the start of the last failed one; 0: none failed
	returned      int           // failed after the repair, because of the return
	late          time.Duration // maximum delay of the client itself
}

// requestsOf summarizes a client's results, in the order sent. every is the client's interval.
func requestsOf(results []probe.Result, every time.Duration, began, healed time.Time) (f requests) {
	before := began // start of the previous request
	for _, r := range results {
		failed := !r.OK() && r.End().After(began)
		switch {
		case !r.Sent.Before(healed), failed && r.End().After(healed):
			if failed {
				f.returned++
			}
			continue
		case r.Sent.Before(began):
			before = r.Sent
			if !failed { // a failed one was in progress when the fault began
				continue
			}
		}
		f.tried++
		f.late = max(f.late, r.Sent.Sub(before)-every)
		before = r.Sent
		if failed {
			f.failed++
			f.last = max(f.last, r.Sent.Sub(began))
		}
	}
	return f
}

// pods returns the Pods that answered the requests of a span of time.
func pods(results []probe.Result, from, to time.Time) map[string]bool {
	all := map[string]bool{}
	for _, r := range results {
		if r.OK() && !r.Sent.Before(from) && r.Sent.Before(to) {
			all[r.Pod] = true
		}
	}
	return all
}

// connections is the effect of a fault on connections established before it, until the repair.
type connections struct {
	conns  int
	broken int             // to live Pods
	dead   int             // to Pods affected by the fault
	resets []time.Duration // of dead, from the fault until the client read the error, sorted
}

// connectionsOf summarizes the results of connections. Their client ended at the repair. A connection breaks by its
// error; one whose answer is overdue at the end has an error, too, but is not reset.
func connectionsOf(results []probe.Result, gone func(pod string) bool, began, ended time.Time) (k connections) {
	to := map[int]string{} // connection -> Pod
	for _, r := range results {
		if !r.End().Before(began) {
			continue
		}
		if to[r.Conn] = r.Pod; !r.OK() {
			delete(to, r.Conn)
		}
	}
	k.conns = len(to)
	for _, pod := range to {
		if gone(pod) {
			k.dead++
		}
	}
	for _, r := range results {
		pod, there := to[r.Conn]
		switch end := r.End(); {
		case !there || r.OK() || !end.After(began):
		case !gone(pod):
			k.broken++
		case end.Before(ended):
			k.resets = append(k.resets, end.Sub(began))
		}
	}
	slices.Sort(k.resets)
	return k
}
