package ccm

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools"
)

// TestForeign: a Service that shows an address of another controller is not changed.
func TestForeign(t *testing.T) {
	s := serviceFor("s", shows("192.0.2.99"))
	d := newDesk(t, "203.0.113.4/31", s)
	d.expect(d.ensure(s), "0 writes, 192.0.2.99 Proxy")
	d.expectEvents()
	if held := d.ledger.standing(s); len(held) != 0 {
		t.Errorf("recorded as ours: %v", held)
	}
	// A pool that has the address takes the Service over.
	r, _ := pools.ParseRanges([]string{"192.0.2.99/32"})
	d.ledger.setPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	d.expect(d.ensure(s), "1 writes, 192.0.2.99 Proxy, Allocated")
}

// TestNewPoolOverShown: a new pool contains an address that another controller's Service shows. The pool gives that
// address to no other Service, not even to one that already waited, in any order of evaluation.
func TestNewPoolOverShown(t *testing.T) {
	theirs, waits := serviceFor("theirs", shows("192.0.2.99")), serviceFor("waits")
	d := newDesk(t, "203.0.113.4/32", theirs, waits, serviceFor("first"))
	d.ledger.services = func() []*v1.Service { return []*v1.Service{theirs, waits} }
	d.expect(d.ensure(serviceFor("first")), "1 writes, 203.0.113.4 Proxy, Allocated")
	d.expect(d.ensure(waits), "1 writes, PoolExhausted")
	d.expect(d.ensure(theirs), "0 writes, 192.0.2.99 Proxy")
	web, _ := pools.ParseRanges([]string{"203.0.113.4/32"})
	more, _ := pools.ParseRanges([]string{"192.0.2.99/32"})
	d.ledger.setPools([]pools.Pool{{Name: "web", Ranges: web, AutoAssign: true}, {Name: "more", Ranges: more, AutoAssign: true}})
	d.expect(d.ensure(waits), "1 writes, PoolExhausted")
	d.expect(d.ensure(theirs), "1 writes, 192.0.2.99 Proxy, Allocated")
	if held := d.ledger.alloc.Holders(netip.MustParseAddr("192.0.2.99")); len(held) != 1 || held[0].Name != "theirs" {
		t.Errorf("held by %v", held)
	}
}
