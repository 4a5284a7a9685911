package addresspool

import (
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
)

// TestAddressOfNode: a Service never gets an address of a node. It keeps one if the node comes later, and waits for one
// until the node is removed.
func TestAddressOfNode(t *testing.T) {
	f := newFixture(t, webPool("203.0.113.4/31"))
	f.process()
	f.ledger.Adopt(nil)
	node := func(name string, addrs ...string) {
		f.ledger.Withhold(pools.Refusal{Rule: pools.RuleNode, Of: name}, watch.Addresses(addrs))
	}
	node("first", "203.0.113.4")
	ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("a")), "203.0.113.5 from pool web, Allocated")
	asks := ccmtest.ServiceFor("b")
	asks.Spec.LoadBalancerIP = "203.0.113.4"
	ccmtest.Expect(t, f.assign(asks), "nothing, AddressWithheld")
	condition := func() string {
		f.t.Helper()
		for _, c := range f.process().Status.Conditions {
			if c.Type == conditionWithheld {
				return string(c.Status) + " " + c.Message
			}
		}
		return "none"
	}
	if got := condition(); !strings.Contains(got, "203.0.113.4 (is an address of Node first)") {
		t.Errorf("Withheld: %s", got)
	}

	// A heartbeat has no effect.
	changes := 0
	f.ledger.PoolsChanged = func() { changes++ }
	if node("first", "203.0.113.4"); changes > 0 || len(f.woken) > 0 {
		t.Errorf("a heartbeat changed something: %v", f.woken)
	}

	// A node that joins, or gets its address, later.
	node("second")
	node("second", "203.0.113.5")
	if !slices.Equal(f.woken, []string{"a"}) {
		t.Fatalf("woken %v", f.woken)
	}
	ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("a")), "203.0.113.5 from pool web, Draining")
	if got := condition(); !strings.Contains(got, "203.0.113.5 (is an address of Node second; still held by default/a)") {
		t.Errorf("Withheld: %s", got)
	}

	f.woken = nil
	node("first")
	node("second")
	if !slices.Equal(f.woken, []string{"b", "a"}) {
		t.Errorf("woken %v", f.woken)
	}
	ccmtest.Expect(t, f.assign(asks), "203.0.113.4 from pool web, Allocated")
	ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("a")), "203.0.113.5 from pool web, Allocated")
	if got := condition(); got != "False " {
		t.Errorf("Withheld: %s", got)
	}
}
