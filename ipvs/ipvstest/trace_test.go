package ipvstest_test

import (
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
)

func TestTrace(t *testing.T) {
	vip := netip.MustParseAddr("203.0.113.4")
	tcp := func(port uint16) ipvs.Key { return ipvs.Key{Addr: vip, Protocol: ipvs.TCP, Port: port} }
	reals := func(weights map[string]uint32) ipvs.VirtualServer {
		vs := ipvs.VirtualServer{RealServers: make(map[netip.AddrPort]ipvs.RealServer)}
		for addr, weight := range weights {
			vs.RealServers[netip.MustParseAddrPort(addr)] = ipvs.RealServer{Weight: weight}
		}
		return vs
	}
	node := ipvstest.Node{
		Local: map[netip.Addr]struct{}{vip: {}, netip.MustParseAddr("203.0.113.9"): {}},
		Filter: ipvs.Filter{
			{Set: ipvs.Addresses, Key: ipvs.Key{Addr: vip}}: {},
			{Set: ipvs.Served, Key: tcp(80)}:                {},
			{Set: ipvs.Served, Key: tcp(81)}:                {},
			{Set: ipvs.Served, Key: tcp(82)}:                {},
			{Set: ipvs.Served, Key: tcp(83)}:                {},
			{Set: ipvs.Masqueraded, Key: tcp(80)}:           {},
		},
		Table: ipvs.Table{
			tcp(80): reals(map[string]uint32{"192.0.2.12:8080": 1, "192.0.2.11:8080": 1, "192.0.2.13:8080": 0}),
			tcp(81): reals(map[string]uint32{"192.0.2.11:8080": 1}),
			tcp(82): reals(nil),
		},
	}
	for to, want := range map[ipvs.Key]string{
		tcp(80): "leaves to 192.0.2.11:8080 or 192.0.2.12:8080, masqueraded",
		tcp(81): "leaves to 192.0.2.11:8080",
		tcp(82): "refused: no real server",
		tcp(83): "reaches the node's own socket",
		tcp(22): "refused: no such port",
		{Addr: netip.MustParseAddr("203.0.113.9"), Protocol: ipvs.TCP, Port: 22}: "reaches the node's own socket",
		{Addr: netip.MustParseAddr("203.0.113.5"), Protocol: ipvs.TCP, Port: 80}: "routed on: the address is not local",
	} {
		if got := node.Trace(to); got != want {
			t.Errorf("%v %s, want: %s", to, got, want)
		}
	}
}
