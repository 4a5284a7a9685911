package kernel

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// Both ways of listing real servers agree: for few, for as many as fit into the first buffer, and for more.
func TestOptionsAgreeWithNetlink(t *testing.T) {
	s := netspace.New(t)
	k, err := OpenAt(s.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.UDP, Port: 53}
	for _, n := range []int{0, 1, 31, 32, 33, 200} {
		vs := ipvs.VirtualServer{Settings: ipvs.Settings{Scheduler: "rr"}, RealServers: map[netip.AddrPort]ipvs.RealServer{}}
		for i := range n {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}), uint16(5000+i))
			vs.RealServers[at] = ipvs.RealServer{Weight: uint32(i * 300), Forward: []ipvs.Forward{ipvs.Masquerade, ipvs.Tunnel}[i%2]}
		}
		have, err := k.List()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Apply(ipvs.Diff(have, ipvs.Table{key: vs})); err != nil {
			t.Fatal(err)
		}
		byOption, err := k.conn.options(key)
		if err != nil {
			t.Fatalf("%d: by option: %v", n, err)
		}
		if !maps.Equal(byOption, vs.RealServers) {
			t.Errorf("%d: by option %v, want %v", n, byOption, vs.RealServers)
		}
		byNetlink, err := k.conn.dests(key)
		if err != nil || !maps.Equal(byNetlink, vs.RealServers) {
			t.Errorf("%d: by netlink %v, %v, want %v", n, byNetlink, err, vs.RealServers)
		}
	}
}
