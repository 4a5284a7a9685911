package gobgp

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/bench/capture"
	"github.com/ironlb/ironlb/test/eventually"
)

// wire records the traffic of a namespace.
type wire struct {
	mu   sync.Mutex
	seen []capture.Packet
}

// watch records the matching packets of a namespace until the test ends.
func watch(t *testing.T, space *netspace.Space, wanted func(capture.Packet) bool) *wire {
	t.Helper()
	w := &wire{}
	space.Must(t, func() error {
		stop, err := capture.Start(func(p capture.Packet) {
			if wanted(p) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.seen = append(w.seen, p)
			}
		})
		if err == nil {
			t.Cleanup(stop)
		}
		return err
	})
	return w
}

// since returns the send times of the packets after a time.
func (w *wire) since(then time.Time) (at []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.seen {
		if p.At.After(then) {
			at = append(at, p.At)
		}
	}
	return at
}

// gaps waits for a number of packets after a time and returns the intervals between them.
func (w *wire) gaps(t *testing.T, what string, since time.Time, packets int) (gaps []time.Duration) {
	t.Helper()
	eventually.True(t, patience, what, func() bool { return len(w.since(since)) >= packets })
	at := w.since(since)
	for i, next := range at[1:] {
		gaps = append(gaps, next.Sub(at[i]))
	}
	t.Logf("%s: %v", what, gaps)
	return gaps
}

// isKeepalive returns a function that reports whether a packet is a single KEEPALIVE to an address (RFC 4271, 4.4).
func isKeepalive(to netip.Addr) func(capture.Packet) bool {
	return func(p capture.Packet) bool {
		return p.Outgoing && p.To.Addr() == to && len(p.Payload) == bgp.BGP_HEADER_LENGTH && p.Payload[18] == bgp.BGP_MSG_KEEPALIVE
	}
}

// TestTimersChange: a changed hold time or KEEPALIVE interval restarts that session and no other. With graceful restart
// the router changes no route meanwhile.
func TestTimersChange(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		n, p := r.neighbor(), r.peer()
		n.IPv4, n.IPv6, p.IPv4, p.IPv6, p.NextHop6, p.GracefulRestart = true, true, true, true, r.node6, true
		n2, p2 := r.pair(t, f, 0, false)
		n2.Name = "second"
		r.neighbors(t, n, n2)
		d := startNode(t, f.node)
		set := both(p)
		set.Peers["other"] = &p2
		set.Routes[more] = to("other")
		d.apply(t, set)
		table := func() {
			t.Helper()
			r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}, pool4: {r.link.node}, more: {n2.Address}})
			r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {r.node6}, pool6: {r.node6}})
		}
		table()
		stays, other := unchanged(t, f, netip.Prefix{}), r.since(t, "second")
		keepalives := watch(t, f.node, isKeepalive(r.link.router))
		agreed := func(name, neighbor string, changes uint64, hold time.Duration) {
			t.Helper()
			d.session(t, name, "restarted", func(s routes.Session) bool { return s.State == routes.SessionEstablished && s.Changes == changes })
			eventually.True(t, patience, "the router has the hold time "+hold.String(), func() bool {
				s, err := r.Sessions(t.Context())
				return err == nil && s[neighbor].Established && s[neighbor].Hold == hold
			})
		}
		change := func(name string, p routes.Peer) {
			t.Helper()
			d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{name: &p}})
		}
		every := func(gaps []time.Duration, want time.Duration) {
			t.Helper()
			var sum time.Duration
			for _, g := range gaps {
				sum += g
			}
			if mean := sum / time.Duration(len(gaps)); mean < want*3/4 || mean > want*3/2 {
				t.Errorf("KEEPALIVEs %v apart, want %v", gaps, want)
			}
		}

		p.HoldTime = 9 * time.Second // and therefore one in 3 s
		change("r", p)
		agreed("r", "node", 2, p.HoldTime)
		every(keepalives.gaps(t, "a KEEPALIVE in three seconds", time.Now(), 3), 3*time.Second)
		p.KeepaliveTime = time.Second
		change("r", p)
		agreed("r", "node", 3, p.HoldTime)
		every(keepalives.gaps(t, "a KEEPALIVE in a second", time.Now(), 4), time.Second)
		p.RestartTime = 77 * time.Second
		change("r", p)
		agreed("r", "node", 4, p.HoldTime)
		if s := r.since(t, "node"); s.RestartTime != p.RestartTime {
			t.Errorf("the router has the restart time %v, want %v", s.RestartTime, p.RestartTime)
		}
		p.ConnectTime, p.BFD = 2*time.Second, view.BFD{Receive: 300 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 3} // not part of the session
		last := r.since(t, "node")
		change("r", p)
		table()
		r.still(t, "node", last)
		r.still(t, "second", other)
		stays()

		p2.HoldTime = 12 * time.Second // without graceful restart
		change("other", p2)
		agreed("other", "second", 2, p2.HoldTime)
		table()
		r.still(t, "node", last)
		p2.HoldTime, p2.KeepaliveTime = 12*time.Second, 4*time.Second // the previous value
		other = r.since(t, "second")
		change("other", p2)
		table()
		r.still(t, "second", other)
	})
}

// TestConnectTime: a router that refuses connections is tried every connectTime to twice that; a changed connectTime
// applies at once.
func TestConnectTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bird")
	r := f.routers[0]
	tries := watch(t, f.node, func(p capture.Packet) bool {
		return !p.Outgoing && p.To.Addr() == r.link.node && p.From == netip.AddrPortFrom(r.link.router, 1790) // RSTs
	})
	p := r.peer()
	p.Port, p.ConnectTime = 1790, 3*time.Second
	d := startNode(t, f.node)
	d.apply(t, wanted(map[string]routes.Peer{"r": p}, nil))
	within := func(gaps []time.Duration, tick time.Duration) {
		t.Helper()
		if late := 2 * time.Second; slices.Min(gaps) < tick*9/10 || slices.Max(gaps) > 2*tick+late {
			t.Errorf("tried %v apart, want %v to %v", gaps, tick, 2*tick)
		}
	}
	within(tries.gaps(t, "tries every 3 s", time.Time{}, 3), p.ConnectTime)
	p.ConnectTime = time.Second
	changed := time.Now()
	d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"r": &p}})
	within(tries.gaps(t, "tries every second", changed, 5), p.ConnectTime)
	if first := tries.since(changed)[0].Sub(changed); first > 3*time.Second {
		t.Errorf("tried %v after the change", first)
	}
}
