package ccm

import (
	"testing"

	"github.com/ironlb/ironlb/pools"
)

// TestForeign: a Service that shows an address of another controller is left alone.
func TestForeign(t *testing.T) {
	s := serviceFor("s", shows("192.0.2.99"))
	d := newDesk(t, "203.0.113.4/31", s)
	d.expect(d.ensure(s), "0 writes, 192.0.2.99 Proxy")
	d.expectEvents()
	if held := d.ledger.standing(s); len(held) != 0 {
		t.Errorf("it stands as ours: %v", held)
	}
	// A pool that has the address takes the Service over.
	r, _ := pools.ParseRanges([]string{"192.0.2.99/32"})
	d.ledger.setPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	d.expect(d.ensure(s), "1 writes, 192.0.2.99 Proxy, Allocated")
}
