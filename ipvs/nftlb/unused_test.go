package nftlb_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// The chains of classes that no virtual server requires any more are deleted: all after the last virtual server, and
// all but a few before.
func TestUnusedChains(t *testing.T) {
	space := netspace.New(t)
	d := open(t, space, nftlb.AllTraffic)
	set := func(want ipvs.Table) {
		t.Helper()
		have, err := d.List()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Apply(ipvs.Diff(have, want)); err != nil {
			t.Fatal(err)
		}
		sameEverywhere(t, d, want)
	}
	chains := func() (names []string) {
		for _, line := range lines(t, space) {
			if name, is := strings.CutPrefix(strings.TrimSpace(line), "chain "); is {
				names = append(names, name)
			}
		}
		return names
	}
	set(ipvs.Table{web: server("rr")})
	none := chains()
	for range 2 { // the second time chains are made again that were deleted
		many := ipvs.Table{}
		for i := range 20 {
			weights := slices.Repeat([]uint32{1}, i+1)
			vs := server("rr", weights...)
			if i%2 == 0 {
				vs.Flags, vs.Timeout = ipvs.Persistent, uint32(60+i)
			}
			many[ipvs.Key{Addr: web.Addr, Protocol: ipvs.TCP, Port: uint16(8000 + i)}] = vs
		}
		set(many)
		if made := len(chains()) - len(none); made < 40 {
			t.Fatalf("%d chains of classes, want 40", made)
		}
		set(ipvs.Table{web: server("rr", 1)})
		if left := len(chains()) - len(none); left > 9 {
			t.Errorf("%d chains of classes are left for one virtual server", left)
		}
		set(nil)
		if left := chains(); !slices.Equal(left, none) {
			t.Errorf("left after the last virtual server: %v, want %v", left, none)
		}
	}
}
