package ccm

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools"
)

// wiped clears the status as another writer may do while no replica runs: conditions and annotation still name the
// address.
func wiped(s *v1.Service) { s.Status.LoadBalancer = v1.LoadBalancerStatus{} }

// TestWiped: a pool's address that was wiped from a status while ironlb-ccm was down is assigned to the same Service
// again, before a waiting Service can get it.
func TestWiped(t *testing.T) {
	before := newDesk(t, "203.0.113.4/31", serviceFor("unrelated"))
	before.pools([]string{"web", "203.0.113.4/31", "2001:db8::/126"})
	other, s, waits := serviceFor("other"), serviceFor("s", dual(v1.IPFamilyPolicyRequireDualStack)), serviceFor("waits")
	before.expect(before.ensure(other), "1 writes, 203.0.113.4 Proxy, Allocated")
	before.expect(before.ensure(s), "1 writes, 203.0.113.5 Proxy, 2001:db8:: Proxy, Allocated")
	before.expect(before.ensure(waits), "1 writes, PoolExhausted")
	wiped(s)
	wiped(other)

	d := newDesk(t, "203.0.113.4/31")
	d.pools([]string{"web", "203.0.113.4/31", "2001:db8::/126"})
	d.adopt(waits, s, other)
	d.expect(d.ensure(waits), "0 writes, PoolExhausted")
	d.expect(d.ensure(s), "1 writes, 203.0.113.5 Proxy, 2001:db8:: Proxy, Allocated")
	d.expect(d.ensure(other), "1 writes, 203.0.113.4 Proxy, Allocated")
}

// TestWipedAndTaken: another Service now shows the address and has it. An address of no pool that was written instead
// is removed.
func TestWipedAndTaken(t *testing.T) {
	record := given("web")
	s := serviceFor("s", shows("203.0.113.4"), record, wiped)
	instead := serviceFor("instead", shows("203.0.113.5"), record, shows(elsewhere))
	other := serviceFor("other", shows("203.0.113.4"))
	other.CreationTimestamp.Time = other.CreationTimestamp.Add(1)
	d := newDesk(t, "203.0.113.4/30", s, instead, other)
	d.expect(d.ensure(s), "1 writes, 203.0.113.6 Proxy, Allocated")
	d.expect(d.ensure(other), "1 writes, 203.0.113.4 Proxy, Allocated")
	d.expect(d.ensure(instead), "1 writes, 203.0.113.5 Proxy, Allocated")
}

// TestLostOf: only the record of a managed Service counts, not the fields that its author can write.
func TestLostOf(t *testing.T) {
	record := given("a", "b")
	both := shows("192.0.2.9", "2001:db8::9")
	class := func(s *v1.Service) { c := "example.com/lb"; s.Spec.LoadBalancerClass = &c }
	a, b := address("192.0.2.9", "a"), address("2001:db8::9", "b")
	for name, c := range map[string]struct {
		svc  *v1.Service
		want []pools.Address
	}{
		"all":          {serviceFor("s", both, record, wiped), []pools.Address{a, b}},
		"one":          {serviceFor("s", both, record, shows("2001:db8::9")), []pools.Address{a}},
		"none":         {serviceFor("s", both, record), nil},
		"annotation":   {serviceFor("s", annotate("ironlb.io/allocated-from", "a,b")), nil},
		"other class":  {serviceFor("s", both, record, wiped, class), nil},
		"no balancer":  {serviceFor("s", both, record, plain), nil},
		"being ended":  {serviceFor("s", both, record, wiped, deleted), nil},
		"never served": {serviceFor("s", shows(elsewhere)), nil},
	} {
		if got := defaults.claimOf(c.svc).Lost; !slices.Equal(got, c.want) {
			t.Errorf("%s: lost %v, want %v", name, got, c.want)
		}
	}
}

// TestWipedAtTheStart: with the service controller, and a waiting Service that comes first by name.
func TestWipedAtTheStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := serviceFor("s", shows("203.0.113.4"), given("web"), wiped)
	s.UID = "2"
	api, events := startServices(ctx, t, 1, node("n"), serviceFor("before"), s)
	await(t, api.CoreV1().Services("default"), "s has its address", func(all map[string]v1.Service) bool {
		return ip(all["s"]) == "203.0.113.4"
	})
	awaitEvent(t, events, "Warning PoolExhausted default/before")
}
