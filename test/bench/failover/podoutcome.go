package main

import (
	"slices"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// requests is what a client of new connections, or of datagrams each from a socket of its own, noticed of a fault.
type requests struct {
	tried, failed int           // of those that began before the fault was healed
	last          time.Duration // from the fault until the last one that failed began; 0: none failed
	returned      int           // failed after it was healed, by what the return did
	late          time.Duration // by how much the client itself was late at most
}

// requestsOf sums up the results, in the order sent, of a client that asks every so often.
func requestsOf(results []probe.Result, every time.Duration, began, healed time.Time) (f requests) {
	before := began // when the last one was sent
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
			if !failed { // else it was under way when the fault came
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

// pods returns who answered what was sent in a span of time.
func pods(results []probe.Result, from, to time.Time) map[string]bool {
	all := map[string]bool{}
	for _, r := range results {
		if r.OK() && !r.Sent.Before(from) && r.Sent.Before(to) {
			all[r.Pod] = true
		}
	}
	return all
}

// connections is what became of connections that were established before the fault, until it was healed.
type connections struct {
	conns  int
	broken int             // to Pods that live
	dead   int             // to Pods that the fault took away
	resets []time.Duration // of these, from the fault until the client read the error, sorted
}

// connectionsOf sums up the results of connections, whose client ended when the fault was healed. A connection breaks
// by its error; one whose answer is overdue at the end has one, too, but is not reset.
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
