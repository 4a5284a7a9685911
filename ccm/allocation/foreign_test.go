package allocation

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
)

// TestForeign: a Service that shows an address of another controller is not changed.
func TestForeign(t *testing.T) {
	s := ccmtest.ServiceFor("s", ccmtest.Shows("192.0.2.99"))
	d := NewDesk(t, "203.0.113.4/31", s)
	d.Expect(d.Ensure(s), "0 writes, 192.0.2.99 Proxy")
	d.expectEvents()
	if held := d.Ledger.Standing(s); len(held) != 0 {
		t.Errorf("recorded as ours: %v", held)
	}
	// A pool that has the address takes the Service over.
	r, _ := pools.ParseRanges([]string{"192.0.2.99/32"})
	d.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	d.Expect(d.Ensure(s), "1 writes, 192.0.2.99 Proxy, Allocated")
}

// TestNewPoolOverShown: a new pool contains an address that another controller's Service shows. The pool gives that
// address to no other Service, not even to one that already waited, in any order of evaluation.
func TestNewPoolOverShown(t *testing.T) {
	theirs, waits := ccmtest.ServiceFor("theirs", ccmtest.Shows("192.0.2.99")), ccmtest.ServiceFor("waits")
	d := NewDesk(t, "203.0.113.4/32", theirs, waits, ccmtest.ServiceFor("first"))
	d.Ledger.services = func() []*v1.Service { return []*v1.Service{theirs, waits} }
	d.Expect(d.Ensure(ccmtest.ServiceFor("first")), "1 writes, 203.0.113.4 Proxy, Allocated")
	d.Expect(d.Ensure(waits), "1 writes, PoolExhausted")
	d.Expect(d.Ensure(theirs), "0 writes, 192.0.2.99 Proxy")
	web, _ := pools.ParseRanges([]string{"203.0.113.4/32"})
	more, _ := pools.ParseRanges([]string{"192.0.2.99/32"})
	d.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: web, AutoAssign: true}, {Name: "more", Ranges: more, AutoAssign: true}})
	d.Expect(d.Ensure(waits), "1 writes, PoolExhausted")
	d.Expect(d.Ensure(theirs), "1 writes, 192.0.2.99 Proxy, Allocated")
	if held := d.Ledger.alloc.Holders(netip.MustParseAddr("192.0.2.99")); len(held) != 1 || held[0].Name != "theirs" {
		t.Errorf("held by %v", held)
	}
}
