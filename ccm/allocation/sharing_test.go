package allocation

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/ccmtest"
)

// TestClashKeepsTheAddress: a sharing Service whose port begins to clash, or that becomes Local, keeps its address
// although others are free. One Warning names the other Service. When they agree again, there is an Event, too.
func TestClashKeepsTheAddress(t *testing.T) {
	port := func(n int32) func(*v1.Service) { return func(s *v1.Service) { s.Spec.Ports[0].Port = n } }
	for name, c := range map[string]struct {
		clash, agree func(*v1.Service)
		why          string
	}{
		"port": {port(80), port(81), "default/first holds 203.0.113.4 and has port TCP/80 as well"},
		"local": {
			func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal },
			func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster },
			"default/first holds 203.0.113.4 and has another spec.selector, " +
				"while default/s has externalTrafficPolicy Local",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "203.0.113.4/30", ccmtest.ServiceFor("unrelated"))
			first := ccmtest.ServiceFor("first", ccmtest.Annotate("ironlb.io/sharing-key", "k"))
			first.Spec.Selector = map[string]string{"app": "x"}
			s := ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/sharing-key", "k"), port(81))
			f.Expect(f.Ensure(first), "1 writes, 203.0.113.4 Proxy, Allocated")
			f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
			f.eventTexts()
			c.clash(s)
			f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, SharingRefused")
			f.Expect(f.Ensure(s), "0 writes, 203.0.113.4 Proxy, SharingRefused")
			f.expectEvents("Warning SharingRefused default/s keeps 203.0.113.4 although " + c.why)
			f.Expect(f.Ensure(first), "0 writes, 203.0.113.4 Proxy, Allocated")

			restarted := newFixture(t, "203.0.113.4/30", s, first)
			restarted.Expect(restarted.Ensure(first), "0 writes, 203.0.113.4 Proxy, Allocated")
			restarted.Expect(restarted.Ensure(s), "0 writes, 203.0.113.4 Proxy, SharingRefused")
			restarted.expectEvents()

			c.agree(s)
			f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
			f.expectEvents("Normal Allocated")
		})
	}
}

// TestDirectShares: Services of policy Local with different Pods share an address while both are forwarded directly.
func TestDirectShares(t *testing.T) {
	f := newFixture(t, "203.0.113.4/30", ccmtest.ServiceFor("unrelated"))
	service := func(name string, port int32) *v1.Service {
		s := ccmtest.ServiceFor(name, ccmtest.Annotate("ironlb.io/sharing-key", "k", "ironlb.io/forwarding", "direct"))
		s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		s.Spec.Selector, s.Spec.Ports[0].Port = map[string]string{"app": name}, port
		return s
	}
	first, s := service("first", 80), service("s", 81)
	f.Expect(f.Ensure(first), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
	delete(s.Annotations, "ironlb.io/forwarding")
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, SharingRefused")
}

// TestRefusedShareIsNamed: no address is free, and the shareable one is refused.
func TestRefusedShareIsNamed(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32", ccmtest.ServiceFor("unrelated"))
	key := ccmtest.Annotate("ironlb.io/sharing-key", "k")
	first, s := ccmtest.ServiceFor("first", key), ccmtest.ServiceFor("s", key)
	f.Ensure(first)
	f.eventTexts()
	f.Expect(f.Ensure(s), "1 writes, SharingRefused")
	f.expectEvents("Warning SharingRefused default/s gets no IPv4 address: default/first holds 203.0.113.4 " +
		"and has port TCP/80 as well, and no address is free in pool web")
}

// TestSecondFamilyClash: an address of the second family that cannot be shared any more causes a Warning.
func TestSecondFamilyClash(t *testing.T) {
	key := ccmtest.Annotate("ironlb.io/sharing-key", "k")
	six := func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol} }
	port := func(n int32) func(*v1.Service) { return func(s *v1.Service) { s.Spec.Ports[0].Port = n } }
	f := newFixture(t, "203.0.113.4/31", ccmtest.ServiceFor("unrelated"))
	f.pools([]string{"web", "203.0.113.4/31", "2001:db8::/128"})
	first, s := ccmtest.ServiceFor("first", key, six), ccmtest.ServiceFor("s", key, port(81), dual(v1.IPFamilyPolicyPreferDualStack))
	f.Ensure(first)
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, 2001:db8:: Proxy, Allocated")
	f.eventTexts()
	port(80)(s)
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, 2001:db8:: Proxy, SharingRefused")
	f.expectEvents("Warning SharingRefused default/s keeps 2001:db8:: although default/first holds")
	late := ccmtest.ServiceFor("late", key, dual(v1.IPFamilyPolicyPreferDualStack))
	f.Expect(f.Ensure(late), "1 writes, 203.0.113.5 Proxy, SharingRefused")
	f.expectEvents("Warning SharingRefused default/late gets no IPv6 address: default/first holds 2001:db8::")
}
