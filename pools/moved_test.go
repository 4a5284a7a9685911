package pools

import (
	"net/netip"
	"testing"
	"time"
)

// TestMoves: a decision that changes an address reports the old one, the new one, and why.
func TestMoves(t *testing.T) {
	pool := func(name string, ranges ...string) Pool {
		r, err := ParseRanges(ranges)
		if err != nil {
			t.Fatal(err)
		}
		return Pool{Name: name, Ranges: r, AutoAssign: true}
	}
	now := time.Unix(0, 0)
	web, dns := ServiceKey{"default", "web"}, ServiceKey{"default", "dns"}
	for name, c := range map[string]struct {
		first, then Claim
		other       Claim  // takes its address after the first
		pools       []Pool // after the first
		host        string // has the address after the first
		want        Move
	}{
		"requested": {
			then: Claim{Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.7")}},
			want: Move{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("203.0.113.7"), "the Service requests 203.0.113.7"},
		},
		"another pool": {
			then: Claim{Pool: "b"},
			want: Move{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("203.0.114.0"), "the Service requests pool b"},
		},
		"no pool has it any more": {
			then:  Claim{Reallocate: true},
			pools: []Pool{pool("b", "203.0.114.0/24")},
			want:  Move{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("203.0.114.0"), "it no longer belongs to any pool"},
		},
		"another host": {
			host: "02:00:00:00:00:09",
			want: Move{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("203.0.113.5"),
				"another host, 02:00:00:00:00:09, answers for it"},
		},
		"another key": {
			first: Claim{SharingKey: "k"}, other: Claim{SharingKey: "k"}, then: Claim{SharingKey: "l"},
			want: Move{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("203.0.113.5"),
				"the Service can no longer share it with default/dns"},
		},
	} {
		a := New()
		a.SetPools([]Pool{pool("a", "203.0.113.4/30"), pool("b", "203.0.114.0/24")})
		c.first.Service, c.then.Service, c.other.Service = web, web, dns
		if d := a.Assign(c.first, now); len(d.Moves) > 0 {
			t.Errorf("%s: the first address is a move: %+v", name, d.Moves)
		}
		a.Written(web, now)
		if c.other.SharingKey != "" {
			a.Assign(c.other, now)
			a.Written(dns, now)
		}
		if c.pools != nil {
			a.SetPools(c.pools)
		}
		if c.host != "" {
			a.SetHosts(map[netip.Addr]string{c.want.From: c.host})
		}
		for range 2 { // a decision that was not written is repeated
			if d := a.Assign(c.then, now); len(d.Moves) != 1 || d.Moves[0] != c.want {
				t.Errorf("%s: %+v, want %+v", name, d.Moves, c.want)
			}
		}
		a.Written(web, now)
		if d := a.Assign(c.then, now); len(d.Moves) > 0 {
			t.Errorf("%s: written, and a repeated move: %+v", name, d.Moves)
		}
	}
}
