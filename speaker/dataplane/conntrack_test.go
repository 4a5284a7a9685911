package dataplane

import (
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/plan"
)

// Real servers for in-cluster and for other clients count, with the greater weight, and so do desired ones.
func TestTracked(t *testing.T) {
	addr := netip.MustParseAddr("203.0.113.4")
	web := ipvs.Key{Addr: addr, Protocol: ipvs.TCP, Port: 80}
	dns := ipvs.Key{Addr: addr, Protocol: ipvs.UDP, Port: 53}
	api := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.5"), Protocol: ipvs.TCP, Port: 80}
	at := func(n byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 8080) }
	server := func(weights map[byte]uint32) ipvs.Table {
		vs := ipvs.VirtualServer{RealServers: map[netip.AddrPort]ipvs.RealServer{}}
		for n, weight := range weights {
			vs.RealServers[at(n)] = ipvs.RealServer{Weight: weight}
		}
		return ipvs.Table{web: vs}
	}
	d := &DataPlane{known: &state{}, in: Inputs{Desired: &plan.Desired{}}}
	d.known.table.have = server(map[byte]uint32{1: 3, 2: 0, 3: 0, 7: 2})
	d.known.internal.have = server(map[byte]uint32{2: 5, 3: 0, 4: 1, 7: 0})
	d.in.Desired.Table = server(map[byte]uint32{1: 3, 5: 1})
	d.in.Desired.ClusterInternal = server(map[byte]uint32{6: 1, 4: 0})
	got := d.tracked(map[ipvs.Key]struct{}{web: {}, dns: {}, api: {}})
	want := server(map[byte]uint32{1: 3, 2: 5, 3: 0, 4: 1, 5: 0, 6: 0, 7: 2})
	want[dns] = ipvs.VirtualServer{RealServers: map[netip.AddrPort]ipvs.RealServer{}}
	if !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	d.known.table.have = nil // a virtual server for in-cluster clients alone counts, too
	got = d.tracked(map[ipvs.Key]struct{}{web: {}})
	if want := server(map[byte]uint32{1: 0, 2: 5, 3: 0, 4: 1, 5: 0, 6: 0, 7: 0}); !got.Equal(want) {
		t.Errorf("cluster-internal alone: got %v, want %v", got, want)
	}
}
