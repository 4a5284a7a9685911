package allocation

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
)

// wiped clears the status as another writer may do while no replica runs: conditions and annotation still name the
// address.
func wiped(s *v1.Service) { s.Status.LoadBalancer = v1.LoadBalancerStatus{} }

// TestWiped: a pool's address that was wiped from a status while ironlb-ccm was down is assigned to the same Service
// again, before a waiting Service can get it.
func TestWiped(t *testing.T) {
	before := newFixture(t, "203.0.113.4/31", ccmtest.ServiceFor("unrelated"))
	before.pools([]string{"web", "203.0.113.4/31", "2001:db8::/126"})
	other, s, waits := ccmtest.ServiceFor("other"), ccmtest.ServiceFor("s", dual(v1.IPFamilyPolicyRequireDualStack)), ccmtest.ServiceFor("waits")
	before.Expect(before.Ensure(other), "1 writes, 203.0.113.4 Proxy, Allocated")
	before.Expect(before.Ensure(s), "1 writes, 203.0.113.5 Proxy, 2001:db8:: Proxy, Allocated")
	before.Expect(before.Ensure(waits), "1 writes, PoolExhausted")
	wiped(s)
	wiped(other)

	f := newFixture(t, "203.0.113.4/31")
	f.pools([]string{"web", "203.0.113.4/31", "2001:db8::/126"})
	f.Adopt(waits, s, other)
	f.Expect(f.Ensure(waits), "0 writes, PoolExhausted")
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.5 Proxy, 2001:db8:: Proxy, Allocated")
	f.Expect(f.Ensure(other), "1 writes, 203.0.113.4 Proxy, Allocated")
}

// TestWipedAndTaken: another Service now shows the address and has it. An address of no pool that was written instead
// is removed.
func TestWipedAndTaken(t *testing.T) {
	record := ccmtest.Given("web")
	s := ccmtest.ServiceFor("s", ccmtest.Shows("203.0.113.4"), record, wiped)
	instead := ccmtest.ServiceFor("instead", ccmtest.Shows("203.0.113.5"), record, ccmtest.Shows(ccmtest.Elsewhere))
	other := ccmtest.ServiceFor("other", ccmtest.Shows("203.0.113.4"))
	other.CreationTimestamp.Time = other.CreationTimestamp.Add(1)
	f := newFixture(t, "203.0.113.4/30", s, instead, other)
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.6 Proxy, Allocated")
	f.Expect(f.Ensure(other), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.Expect(f.Ensure(instead), "1 writes, 203.0.113.5 Proxy, Allocated")
}

// TestLostOf: only the record of a managed Service counts, not the fields that its author can write.
func TestLostOf(t *testing.T) {
	record := ccmtest.Given("a", "b")
	both := ccmtest.Shows("192.0.2.9", "2001:db8::9")
	class := func(s *v1.Service) { c := "example.com/lb"; s.Spec.LoadBalancerClass = &c }
	a, b := ccmtest.Address("192.0.2.9", "a"), ccmtest.Address("2001:db8::9", "b")
	for name, c := range map[string]struct {
		svc  *v1.Service
		want []pools.Address
	}{
		"all":          {ccmtest.ServiceFor("s", both, record, wiped), []pools.Address{a, b}},
		"one":          {ccmtest.ServiceFor("s", both, record, ccmtest.Shows("2001:db8::9")), []pools.Address{a}},
		"none":         {ccmtest.ServiceFor("s", both, record), nil},
		"annotation":   {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/allocated-from", "a,b")), nil},
		"other class":  {ccmtest.ServiceFor("s", both, record, wiped, class), nil},
		"no balancer":  {ccmtest.ServiceFor("s", both, record, ccmtest.Plain), nil},
		"being ended":  {ccmtest.ServiceFor("s", both, record, wiped, ccmtest.Deleted), nil},
		"never served": {ccmtest.ServiceFor("s", ccmtest.Shows(ccmtest.Elsewhere)), nil},
	} {
		if got := defaults.ClaimOf(c.svc).Lost; !slices.Equal(got, c.want) {
			t.Errorf("%s: lost %v, want %v", name, got, c.want)
		}
	}
}

// TestWipedAtTheStart: with the service controller, and a waiting Service that comes first by name.
func TestWipedAtTheStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := ccmtest.ServiceFor("s", ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"), wiped)
	s.UID = "2"
	api, events := startServices(ctx, t, 1, ccmtest.Node("n"), ccmtest.ServiceFor("before"), s)
	await(t, api.CoreV1().Services("default"), "s has its address", func(all map[string]v1.Service) bool {
		return ccmtest.IP(all["s"]) == "203.0.113.4"
	})
	awaitEvent(t, events, "Warning PoolExhausted default/before")
}
