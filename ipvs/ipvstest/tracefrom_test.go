package ipvstest_test

import (
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
)

func TestTraceFrom(t *testing.T) {
	vip, node := netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("192.0.2.200")
	tcp := func(port uint16) ipvs.Key { return ipvs.Key{Addr: vip, Protocol: ipvs.TCP, Port: port} }
	nodePort := ipvs.Key{Addr: node, Protocol: ipvs.TCP, Port: 30080}
	reals := func(addrs ...string) ipvs.VirtualServer {
		vs := ipvs.VirtualServer{RealServers: map[netip.AddrPort]ipvs.RealServer{}}
		for _, addr := range addrs {
			vs.RealServers[netip.MustParseAddrPort(addr)] = ipvs.RealServer{Weight: 1}
		}
		return vs
	}
	prefix := netip.MustParsePrefix
	n := ipvstest.Node{
		Local: map[netip.Addr]struct{}{vip: {}},
		Own:   map[netip.Addr]struct{}{node: {}},
		Filter: ipvs.Filter{
			{Set: ipvs.Addresses, Key: ipvs.Key{Addr: vip}}: {},
			{Set: ipvs.Served, Key: tcp(80)}:                {}, {Set: ipvs.Served, Key: tcp(81)}: {}, {Set: ipvs.Served, Key: tcp(82)}: {},
			{Set: ipvs.Dropped, Key: tcp(80)}: {}, {Set: ipvs.Dropped, Key: tcp(81)}: {},
			{Set: ipvs.MasqueradedUnlessPod, Key: tcp(82)}:                              {},
			{Set: ipvs.Restricted, Key: tcp(82)}:                                        {},
			ipvs.Element{Set: ipvs.Allowed, Key: tcp(82)}.From(prefix("192.0.2.0/24")):  {},
			ipvs.Element{Set: ipvs.Pods}.From(prefix("192.0.2.0/25")):                   {},
			{Set: ipvs.Hairpin, Key: ipvs.Key{Addr: netip.MustParseAddr("192.0.2.11")}}: {},
			ipvs.Element{Set: ipvs.ServiceNetworks}.From(prefix("203.0.113.0/24")):      {},
		},
		Table: ipvs.Table{
			tcp(80): reals(), tcp(81): reals(), tcp(82): reals("192.0.2.11:8080", "192.0.2.12:8080"), nodePort: reals("192.0.2.11:8080"),
		},
		ClusterInternal: ipvs.Table{tcp(80): reals("192.0.2.11:8080")},
	}
	outside := ipvstest.Client{Addr: netip.MustParseAddr("198.51.100.7")}
	pod, self := ipvstest.Client{Addr: netip.MustParseAddr("192.0.2.11")}, ipvstest.Client{Self: true}
	neighbor := ipvstest.Client{Addr: netip.MustParseAddr("192.0.2.201")}
	for _, tt := range []struct {
		from ipvstest.Client
		to   ipvs.Key
		want string
	}{
		{outside, tcp(80), "dropped: no endpoint here"},
		{pod, tcp(80), "leaves to 192.0.2.11:8080 (masqueraded)"},
		{self, tcp(80), "leaves to 192.0.2.11:8080, masqueraded"},
		{pod, tcp(81), "dropped: no endpoint here"},
		{outside, tcp(82), "dropped: not in the source ranges"},
		{self, tcp(82), "dropped: not in the source ranges"},
		{pod, tcp(82), "leaves to 192.0.2.11:8080 (masqueraded) or 192.0.2.12:8080"},
		{neighbor, tcp(82), "leaves to 192.0.2.11:8080 or 192.0.2.12:8080, masqueraded"},
		{pod, tcp(22), "refused: no such port"},
		{outside, nodePort, "leaves to 192.0.2.11:8080"},
		{outside, ipvs.Key{Addr: node, Protocol: ipvs.TCP, Port: 22}, "reaches the node's own socket"},
		{pod, ipvs.Key{Addr: netip.MustParseAddr("203.0.113.9"), Protocol: ipvs.TCP, Port: 80}, "dropped: unallocated ClusterIP"},
		{pod, ipvs.Key{Addr: netip.MustParseAddr("198.51.100.9"), Protocol: ipvs.TCP, Port: 80}, "routed on: the address is not local"},
	} {
		if got := n.TraceFrom(tt.from, tt.to); got != tt.want {
			t.Errorf("%+v to %v %s, want: %s", tt.from, tt.to, got, tt.want)
		}
	}
}
