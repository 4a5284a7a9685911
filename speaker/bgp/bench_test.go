package bgp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// many returns a full set of a number of routes to two peers.
func many(prefixes int) routes.Change {
	c := two()
	attributes := view.Attributes{Communities: view.NewCommunitySet(65001<<16|1, 65001<<16|2), LocalPref: 100}
	for i := range prefixes {
		c.Routes[netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51 + byte(i>>16), byte(i >> 8), byte(i)}), 32)] = routes.Route{"a": attributes, "b": attributes}
	}
	return c
}

// BenchmarkFullChange: a full set is written and read once, as on each of its two connections.
func BenchmarkFullChange(b *testing.B) {
	for _, prefixes := range []int{100, 10000} {
		b.Run(fmt.Sprint(prefixes), func(b *testing.B) {
			c := many(prefixes)
			var line []byte
			var err error
			for b.Loop() {
				if line, err = json.Marshal(request{Change: &c}); err != nil {
					b.Fatal(err)
				}
				if err = decode(line, new(request)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(line)), "octets")
		})
	}
}

// BenchmarkChange: one route among 10,000, from the speaker through the daemon to a child, and its report back.
func BenchmarkChange(b *testing.B) {
	n := startNode(b, socketPath(b), 0)
	s := startSpeaker(b, n.socket)
	s.Set(many(10000))
	s.established("a", 10001)
	extra := prefix("203.0.113.9/32")
	have := 0
	for b.Loop() {
		have = 1 - have
		route := routes.Route(nil)
		if have == 1 {
			route = to("a")
		}
		s.Set(change(map[netip.Prefix]routes.Route{extra: route}))
		s.established("a", 10001+have)
	}
}
