package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/test/eventually"
)

// announced returns how many prefixes were measured, and their total duration.
func announced(t testing.TB, reg *prometheus.Registry) (prefixes uint64, took float64) {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range all {
		if of.GetName() == "ironlb_bgp_announce_duration_seconds" {
			h := of.Metric[0].Histogram
			return h.GetSampleCount(), h.GetSampleSum()
		}
	}
	t.Fatal("there is no such metric")
	return 0, 0
}

// TestAnnouncing: each announced prefix counts when it has been applied; a withdrawal and the first change do not
// count.
func TestAnnouncing(t *testing.T) {
	reg := prometheus.NewRegistry()
	a := newAnnouncing(reg)
	began := time.Unix(0, 0)
	now := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	prefixes := func(n int) map[netip.Prefix]routes.Route {
		out := map[netip.Prefix]routes.Route{prefix("203.0.113.255/32"): nil}
		for i := range n {
			out[prefix(fmt.Sprintf("203.0.113.%d/32", i))] = to("a")
		}
		return out
	}
	is := func(prefixes uint64, took float64) {
		t.Helper()
		if n, sum := announced(t, reg); n != prefixes || sum != took {
			t.Errorf("%d prefixes in %v s, want %d in %v", n, sum, prefixes, took)
		}
	}
	first := a.set(routes.Change{Full: true, Routes: prefixes(9)}, false, now(0))
	two := a.set(change(prefixes(2)), true, now(1))
	a.set(change(prefixes(0)), true, now(2))
	three := a.set(change(prefixes(3)), true, now(3))
	last := a.set(change(prefixes(1)), true, now(4))
	a.applied(0, now(10))
	a.applied(first-1, now(10)) // of an earlier process
	a.applied(last+1, now(10))  // of an earlier process with a clock ahead of this one
	a.applied(first, now(10))
	is(0, 0)
	a.applied(two, now(11))
	is(2, 20)
	a.applied(two, now(12)) // again, to another child
	a.applied(three, now(13))
	is(5, 50)
	a.applied(last, now(14))
	is(6, 60)
	for range 2 * maxPending { // an ironlb-bgpd that never reports
		last = a.set(change(prefixes(1)), true, now(14))
	}
	a.applied(last, now(14))
	is(6+maxPending, 60)
}

// TestAnnounceIsMeasured: up to the process with GoBGP and back, even if ironlb-bgpd is absent for a while.
func TestAnnounceIsMeasured(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	until := func(prefixes uint64) (took float64) {
		t.Helper()
		eventually.Nil(t, 20*time.Second, fmt.Sprintf("%d prefixes are measured", prefixes), func(context.Context) error {
			var is uint64
			is, took = announced(t, s.reg)
			return eventually.Unless(is == prefixes, "%d are", is)
		})
		return took
	}
	s.Set(two())
	s.established("a", 1)
	began := time.Now()
	s.Set(change(map[netip.Prefix]routes.Route{prefix("203.0.113.1/32"): to("a"), prefix("203.0.113.2/32"): to("a")}))
	if took := until(2); took <= 0 || took > 2*time.Since(began).Seconds() {
		t.Errorf("it took %v s, of %v", took, time.Since(began))
	}
	s.Set(change(map[netip.Prefix]routes.Route{prefix("203.0.113.2/32"): nil}))
	s.established("a", 1)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	s.Set(change(map[netip.Prefix]routes.Route{prefix("203.0.113.3/32"): to("a")}))
	startNode(t, n.socket, 0)
	until(3)
}
