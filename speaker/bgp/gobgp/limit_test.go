package gobgp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/speaker/routes"
	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/test/eventually"
)

// table returns n prefixes for a router to announce.
func table(n int) (out []netip.Prefix) {
	for i := range n {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 10<<24|uint32(i)<<4)
		out = append(out, netip.PrefixFrom(netip.AddrFrom4(b), 28))
	}
	return out
}

// TestTooManyPrefixes: a router that announces more prefixes than allowed loses its session at once, with a reason on
// both sides, and is not tried again. With a higher limit there is a session, and its limit is changed in place.
func TestTooManyPrefixes(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		const n = 2000
		r.conf.Announce = table(n)
		r.neighbors(t, r.neighbor())
		d := startNode(t, f.node)
		p := r.peer()
		p.MaxReceivedPrefixes = n - 1
		prefixes := map[netip.Prefix]routes.Route{vip4: to("r")}
		d.apply(t, wanted(map[string]routes.Peer{"r": p}, prefixes))
		s := d.fails(t, "r", routes.TooManyPrefixes)
		if !strings.Contains(s.Message, fmt.Sprintf("more than %d IPv4 prefixes (maxReceivedPrefixes)", n-1)) {
			t.Errorf("the message is %q", s.Message)
		}
		eventually.Nil(t, patience, "the router has the reason", func(context.Context) error {
			log := r.Log()
			return eventually.Unless(strings.Contains(strings.ToLower(log), "maximum number of prefixes reached"), "it has %s", log)
		})
		d.kill()

		d = startNode(t, f.node)
		p.MaxReceivedPrefixes = n + 1 // FRR announces the address back
		d.apply(t, wanted(map[string]routes.Peer{"r": p}, prefixes))
		d.up(t, "r")
		r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}})
		before := r.since(t, "node")
		eventually.True(t, patience, "all came", func() bool { return len(d.order(t, order{Paths: true}).Came[r.link.router.String()]) >= n })
		p.MaxReceivedPrefixes = n + 2
		change := func() { d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"r": &p}}) }
		change()
		r.still(t, "node", before)
		p.MaxReceivedPrefixes = n - 1
		change()
		s = d.fails(t, "r", routes.TooManyPrefixes)
		if s.Changes != 1 || !strings.Contains(s.Message, fmt.Sprintf("more than %d ", n-1)) {
			t.Errorf("the session is %+v", s)
		}
	})
}

// TestRestartedAfterLimit: the events of a session that reached its limit are ignored, those of the next session are
// not.
func TestRestartedAfterLimit(t *testing.T) {
	s := newSession()
	p := routes.Peer{Address: netip.MustParseAddr("192.0.2.1"), MaxReceivedPrefixes: 5}
	s.hold(p)
	established := func() bool {
		s.event(&api.WatchEventResponse{Event: &api.WatchEventResponse_Peer{Peer: &api.WatchEventResponse_PeerEvent{
			Peer: &api.Peer{State: &api.PeerState{NeighborAddress: "192.0.2.1",
				SessionState: api.PeerState_ESTABLISHED}}}}})
		return s.established()
	}
	s.mu.Lock()
	s.limitReached("ipv4-unicast")
	s.mu.Unlock()
	if established() {
		t.Error("a late event brings the session back")
	}
	s.release()
	s.hold(p)
	if !established() {
		t.Error("the next session is not noticed")
	}
}
