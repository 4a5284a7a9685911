package bgp

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestMerged: however changes are merged, the other side reaches the same state.
func TestMerged(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		var want, got routes.BGP
		var todo *routes.Change
		for i := range 30 {
			c := randomChange(r, i == 0)
			if i < 25 {
				c.Serial = uint64(i)
			}
			want.Apply(c)
			todo = merge(todo, c)
			if r.IntN(4) == 0 || i == 29 {
				got.Apply(overTheWire(t, *todo))
				todo = nil
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: it got\n%v, want\n%v", seed, got, want)
		}
		if got.Serial != 24 {
			t.Fatalf("seed %d: it got the change %d, want 24", seed, got.Serial)
		}
		var again routes.BGP
		again.Apply(overTheWire(t, *fullChange(want)))
		if !reflect.DeepEqual(again, want) {
			t.Fatalf("seed %d: the full set is\n%v, want\n%v", seed, again, want)
		}
	}
}

func overTheWire(t *testing.T, c routes.Change) routes.Change {
	t.Helper()
	line, err := json.Marshal(request{Change: &c})
	if err != nil {
		t.Fatal(err)
	}
	var r request
	if err := decode(line, &r); err != nil {
		t.Fatal(err)
	}
	return *r.Change
}

// TestParts: the child of each peer reaches the peer's part of the configuration, with any changes and however many of
// them are sent together.
func TestParts(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		d := NewDaemon(DaemonOptions{Metrics: NewMetrics(prometheus.NewRegistry())})
		got := map[string]*PeerChange{}
		for i := range 30 {
			c := randomChange(r, i == 0)
			c.RouterID = addr("192.0.2.1") // another one starts another process
			for _, name := range []string{"a", "b"} {
				if _, given := c.Peers[name]; !given || c.Peers[name] == nil {
					c.Peers[name] = peer(254)
				}
			}
			c.Serial = uint64(i + 1)
			for name, p := range c.Peers { // all have a child, which starts no process
				if d.children[name] == nil && p != nil {
					ch := &child{d: d, peer: name, running: true, want: *p, outbox: newOutbox(), end: func() {}}
					ch.want.RouterID = c.RouterID
					ch.sendAll(d.wanted.Serial)
					d.children[name] = ch
				}
			}
			d.apply(c)
			for name, ch := range d.children {
				if r.IntN(3) > 0 && i < 29 {
					continue
				}
				if o, is := ch.next().(order); is {
					if got[name] == nil || o.Change.Full {
						got[name] = new(PeerChange)
					}
					got[name].add(*o.Change)
				}
			}
		}
		for name, p := range d.wanted.Peers {
			p.RouterID = d.wanted.RouterID
			want := map[netip.Prefix]view.Attributes{}
			for prefix, route := range d.wanted.Routes {
				if a, has := route[name]; has {
					want[prefix] = a
				}
			}
			is := map[netip.Prefix]view.Attributes{}
			for prefix, a := range got[name].Routes {
				if a != nil {
					is[prefix] = *a
				}
			}
			if got[name].Peer != p || !reflect.DeepEqual(is, want) {
				t.Fatalf("seed %d: %s got\n%+v %v, want\n%+v %v", seed, name, got[name].Peer, is, p, want)
			}
		}
	}
}

// TestUrgentFirst: Down is sent before a pending change.
func TestUrgentFirst(t *testing.T) {
	d := NewDaemon(DaemonOptions{})
	c := &child{d: d, peer: "a", outbox: newOutbox()}
	c.sendAll(0)
	c.urge(order{Down: "silence"})
	if o, is := c.next().(order); !is || o.Down != "silence" {
		t.Errorf("first comes %+v", o)
	}
	if o, is := c.next().(order); !is || o.Change == nil || !o.Change.Full {
		t.Errorf("then comes %+v", o)
	}
	if v := c.next(); v != nil {
		t.Errorf("then comes %+v", v)
	}
}

func randomChange(r *rand.Rand, full bool) routes.Change {
	c := routes.Change{
		Full: full || r.IntN(8) == 0, RouterID: netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(3) + 1)}), NodeDecommissioning: r.IntN(2) == 0,
		Peers: map[string]*routes.Peer{}, Routes: map[netip.Prefix]routes.Route{},
	}
	for _, name := range []string{"a", "b", "c"} {
		switch r.IntN(4) {
		case 0:
			c.Peers[name] = nil
		case 1:
			c.Peers[name] = &routes.Peer{Address: addr("192.0.2.254"), PeerASN: uint32(r.IntN(100))}
		}
	}
	for i := range 5 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 32)
		switch r.IntN(4) {
		case 0:
			c.Routes[p] = nil
		case 1:
			c.Routes[p] = routes.Route{"a": view.Attributes{LocalPref: uint32(r.IntN(100))}, "b": {LocalPref: 7}}
		}
	}
	return c
}
