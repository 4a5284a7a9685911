package pools

import (
	"net/netip"
	"testing"
	"time"
)

func TestLowestFreeFirst(t *testing.T) {
	a := New()
	r, err := ParseRanges([]string{"203.0.113.4/31", "2001:db8::4/127"})
	if err != nil {
		t.Fatal(err)
	}
	a.SetPools([]Pool{{Name: "p", Ranges: r, AutoAssign: true}})
	for i, want := range []string{"203.0.113.4", "203.0.113.5"} {
		d := a.Assign(Claim{Service: ServiceKey{"default", string(rune('a' + i))}}, time.Unix(0, 0))
		if d.Reason != Allocated || !d.Changed || d.Lease[0].Addr != netip.MustParseAddr(want) {
			t.Errorf("got %+v, want %s", d, want)
		}
	}
}
