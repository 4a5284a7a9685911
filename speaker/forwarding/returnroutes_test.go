package forwarding

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

func rangeOf(first, last string) pools.Range {
	return pools.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

func via(gateway, name string) pools.ReturnRoute {
	return pools.ReturnRoute{Gateway: netip.MustParseAddr(gateway), Interface: name}
}

func linkOf(name string, subnets ...string) view.Link {
	out := view.Link{Name: name}
	for _, s := range subnets {
		out.Subnets = append(out.Subnets, netip.MustParsePrefix(s))
	}
	return out
}

func TestReturnsOf(t *testing.T) {
	v := view.New()
	for _, l := range []view.Link{
		linkOf("eth0", "10.0.0.0/24"), linkOf("eth1", "192.0.2.0/24", "2001:db8:1::/64"), linkOf("eth2", "192.0.2.0/24"),
	} {
		v.Links[l.Name] = l
	}
	v.Host[netip.MustParseAddr("192.0.2.9")] = struct{}{}
	both := []pools.Range{rangeOf("192.0.2.96", "192.0.2.112"), rangeOf("2001:db8:1::100", "2001:db8:1::1ff")}
	for _, tt := range []struct {
		name   string
		ranges []pools.Range
		routes []pools.ReturnRoute
		// want is "gateway interface" of each family that has a route, or a part of the reason why none is there.
		want []string
	}{
		{"by network", both, []pools.ReturnRoute{via("192.0.2.254", ""), via("2001:db8:1::fe", "")}, []string{"192.0.2.254 eth1", "2001:db8:1::fe eth1"}},
		{"by interface", both[:1], []pools.ReturnRoute{via("192.0.2.254", "eth2")}, []string{"192.0.2.254 eth2"}},
		{"one family", both, []pools.ReturnRoute{via("192.0.2.254", "")}, []string{"192.0.2.254 eth1"}},
		{"no addresses of the family", both[1:], []pools.ReturnRoute{via("192.0.2.254", "")}, nil},
		{"the first that is here", both[:1], []pools.ReturnRoute{via("198.51.100.1", ""), via("10.0.0.1", ""), via("192.0.2.254", "")}, []string{"10.0.0.1 eth0"}},
		{"link-local", both[1:], []pools.ReturnRoute{via("fe80::1", "eth2")}, []string{"fe80::1 eth2"}},
		{"link-local elsewhere", both[1:], []pools.ReturnRoute{via("fe80::1", "eth7")}, []string{"interface eth7 is down"}},
		{"another network", both[:1], []pools.ReturnRoute{via("198.51.100.1", "")}, []string{"no interface that is up"}},
		{"another interface", both[:1], []pools.ReturnRoute{via("192.0.2.254", "eth0")}, []string{"interface eth0 is down, or has no address"}},
		{"this node", both[:1], []pools.ReturnRoute{via("192.0.2.9", "")}, []string{"is this node"}},
		{"none", both, nil, nil},
	} {
		v.Pools = map[string]view.Pool{"lan": {Ranges: tt.ranges, ReturnRoutes: tt.routes}}
		ofPools, routes := returnsOf(v)
		got := make([]string, 0, len(ofPools))
		missing := 0
		for _, r := range ofPools {
			if text := r.Missing; text != "" {
				got = append(got, text)
				missing++
				continue
			}
			got = append(got, r.Gateway.String()+" "+r.Interface)
		}
		if !slices.EqualFunc(got, tt.want, strings.Contains) || len(routes) != len(got)-missing {
			t.Errorf("%s: %q and routes %v, want %q", tt.name, got, routes, tt.want)
		}
		if (MissingReturn(v) != "") != (missing > 0) {
			t.Errorf("%s: missing %q", tt.name, MissingReturn(v))
		}
	}
}

// Pools with the same gateway share a route, which has the prefixes of all and the subnets of the interface.
func TestReturnsAreShared(t *testing.T) {
	v := view.New()
	v.Links["eth1"] = linkOf("eth1", "192.0.2.0/24", "203.0.113.0/24", "2001:db8:1::/64")
	v.Pools["a"] = view.Pool{Ranges: []pools.Range{rangeOf("192.0.2.96", "192.0.2.112")}, ReturnRoutes: []pools.ReturnRoute{via("192.0.2.254", "")}}
	v.Pools["b"] = view.Pool{Ranges: []pools.Range{rangeOf("192.0.2.0", "192.0.2.15")}, ReturnRoutes: []pools.ReturnRoute{via("192.0.2.254", "eth1")}}
	_, routes := returnsOf(v)
	want := ipvs.ReturnRoute{Gateway: netip.MustParseAddr("192.0.2.254"), Interface: "eth1"}
	for _, p := range []string{"192.0.2.0/24", "203.0.113.0/24"} {
		want.Subnets = append(want.Subnets, netip.MustParsePrefix(p))
	}
	for _, p := range []string{"192.0.2.0/28", "192.0.2.96/28", "192.0.2.112/32"} {
		want.Prefixes = append(want.Prefixes, netip.MustParsePrefix(p))
	}
	if len(routes) != 1 || !routes[0].Equal(want) {
		t.Errorf("%v, want %v", routes, want)
	}
}
