package allocation

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
)

// dual makes a Service dual-stack, IPv4 first.
func dual(policy v1.IPFamilyPolicy) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
		s.Spec.IPFamilyPolicy = ptr.To(policy)
	}
}

// pools replaces the pools: each argument is a name and its entries.
func (f *fixture) pools(all ...[]string) {
	f.t.Helper()
	var list []pools.Pool
	for _, p := range all {
		r, err := pools.ParseRanges(p[1:])
		if err != nil {
			f.t.Fatal(err)
		}
		list = append(list, pools.Pool{Name: p[0], Ranges: r, AutoAssign: true})
	}
	f.Ledger.SetPools(list)
}

// TestSecondFamilyAlone: if only pools of the second family exist, PreferDualStack gets that one, without a Warning.
// The first family follows when a pool has it. RequireDualStack waits.
func TestSecondFamilyAlone(t *testing.T) {
	f := newFixture(t, "2001:db8::/126", ccmtest.ServiceFor("unrelated"))
	s := ccmtest.ServiceFor("s", dual(v1.IPFamilyPolicyPreferDualStack))
	needs := ccmtest.ServiceFor("needs", dual(v1.IPFamilyPolicyRequireDualStack))
	f.Expect(f.Ensure(s), "1 writes, 2001:db8:: Proxy, SecondFamilyPending")
	f.Expect(f.Ensure(needs), "1 writes, NoPool")
	f.expectEvents("Normal SecondFamilyPending no pool auto-assigns IPv4 addresses to default/s")
	f.Woken = nil
	f.pools([]string{"web", "2001:db8::/126"}, []string{"more", "203.0.113.4/31"})
	if !slices.Equal(f.Woken, []string{"needs", "s"}) {
		t.Errorf("woken %v", f.Woken)
	}
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.5 Proxy, 2001:db8:: Proxy, Allocated") // after needs, by name
	f.Expect(f.Ensure(needs), "1 writes, 203.0.113.4 Proxy, 2001:db8::1 Proxy, Allocated")
	f.expectEvents("Normal Allocated Allocated 203.0.113.5 from pool more and 2001:db8:: from pool web",
		"Normal Allocated")
}

// TestOtherFamilyOfARequest: if a dual-stack Service requests one address, the pools provide the other family. The
// outcome names it.
func TestOtherFamilyOfARequest(t *testing.T) {
	f := newFixture(t, "203.0.113.4/31", ccmtest.ServiceFor("unrelated"))
	f.pools([]string{"web", "203.0.113.4/30", "2001:db8::/126"})
	s := ccmtest.ServiceFor("s", dual(v1.IPFamilyPolicyRequireDualStack), ccmtest.Annotate("ironlb.io/ips", "2001:db8::2"))
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, 2001:db8::2 Proxy, Allocated")
	f.expectEvents("Normal Allocated Allocated 203.0.113.4 from pool web and 2001:db8::2 from pool web. " +
		"Its request names no IPv4 address, so any was chosen: name both in annotation ironlb.io/ips to keep it")
	f.Expect(f.Ensure(s), "0 writes, 203.0.113.4 Proxy, 2001:db8::2 Proxy, Allocated")
	f.expectEvents()
	ccmtest.Annotate("ironlb.io/ips", "2001:db8::2,203.0.113.4")(s)
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, 2001:db8::2 Proxy, Allocated")
	f.expectEvents("Normal Allocated Allocated 203.0.113.4 from pool web and 2001:db8::2 from pool web")

	field := ccmtest.ServiceFor("field", dual(v1.IPFamilyPolicyPreferDualStack))
	field.Spec.LoadBalancerIP = "203.0.113.5"
	f.Expect(f.Ensure(field), "1 writes, 203.0.113.5 Proxy, 2001:db8:: Proxy, Allocated")
	f.expectEvents("Its request names no IPv6 address")
	single := ccmtest.ServiceFor("single", ccmtest.Annotate("ironlb.io/ips", "203.0.113.6"))
	f.Expect(f.Ensure(single), "1 writes, 203.0.113.6 Proxy, Allocated")
	if events := f.eventTexts(); len(events) != 1 || events[0] != "Normal Allocated Allocated 203.0.113.6 from pool web" {
		t.Errorf("Events %q for a Service of one family", events)
	}
}
