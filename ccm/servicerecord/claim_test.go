package servicerecord

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// defaults are the settings without any flag.
var defaults = func() *Scope { s := DefaultScope(); return &s }()

func TestClaimOf(t *testing.T) {
	svc := ccmtest.ServiceFor("web",
		ccmtest.Annotate("ironlb.io/ip-pool", "p", "metallb.io/address-pool", "p", "metallb.io/allow-shared-ip", "k",
			"ironlb.io/reallocate", "true", "ironlb.io/ips", "192.0.2.1, 2001:db8::1"),
		ccmtest.Shows("192.0.2.9", "2001:db8::9"), ccmtest.Given("a", "b"), ccmtest.Annotate("ironlb.io/allocated-from", "b,b"), // by its author
		func(svc *v1.Service) {
			svc.Labels = map[string]string{"l": "1"}
			svc.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
			svc.Spec.IPFamilyPolicy = ptr.To(v1.IPFamilyPolicyRequireDualStack)
			svc.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
			svc.Spec.Selector = map[string]string{"b": "2", "a": "1"}
		})
	want := pools.Claim{
		Service:    pools.ServiceKey{Namespace: "default", Name: "web"},
		Labels:     map[string]string{"l": "1"},
		Families:   []pools.Family{pools.IPv4, pools.IPv6},
		Policy:     pools.RequireDualStack,
		Addresses:  []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		Pool:       "p",
		Reallocate: true,
		SharingKey: "k",
		Ports:      []pools.Port{{Protocol: "TCP", Number: 80}},
		Local:      true,
		Selector:   "a=1,b=2",
		Held: []pools.Address{
			{Addr: netip.MustParseAddr("192.0.2.9"), Pool: "a"}, {Addr: netip.MustParseAddr("2001:db8::9"), Pool: "b"},
		},
	}
	if diff := cmp.Diff(want, defaults.ClaimOf(svc), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
}

// Services of policy Local that are forwarded directly may share an address whatever their Pods.
func TestDirectIsNotLocal(t *testing.T) {
	local := func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal }
	direct, vip := DefaultScope(), DefaultScope()
	direct.Forwarding, vip.IPMode = v1alpha1.ForwardingDirect, "VIP"
	for _, c := range []struct {
		scope      *Scope
		annotation string
		local      bool
	}{
		{defaults, "", true}, {defaults, "direct", false}, {defaults, "nodeport", true},
		{&direct, "", false}, {&direct, "pod", true}, {&vip, "direct", true},
	} {
		svc := ccmtest.ServiceFor("web", local, ccmtest.Annotate(v1alpha1.AnnotationForwarding, c.annotation))
		if got := c.scope.ClaimOf(svc).Local; got != c.local {
			t.Errorf("%q, by default %q, %s: local %v", c.annotation, c.scope.Forwarding, c.scope.IPMode, got)
		}
	}
}

func TestInvalidClaims(t *testing.T) {
	for name, c := range map[string]struct {
		svc  *v1.Service
		want []string // parts of Claim.Invalid; none: valid
	}{
		"nothing requested":        {ccmtest.ServiceFor("s"), nil},
		"field only":               {ccmtest.ServiceFor("s", func(s *v1.Service) { s.Spec.LoadBalancerIP = "192.0.2.1" }), nil},
		"field and the same":       {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "192.0.2.1"), func(s *v1.Service) { s.Spec.LoadBalancerIP = "192.0.2.1" }), nil},
		"both spellings":           {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "192.0.2.1", "metallb.io/loadBalancerIPs", "192.0.2.1")), nil},
		"two ways to write a list": {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "192.0.2.1, 2001:db8::1", "metallb.io/loadBalancerIPs", "2001:DB8:0::1,192.0.2.1")), nil},
		"the field and a list of one": {ccmtest.ServiceFor("s", ccmtest.Annotate("metallb.io/loadBalancerIPs", " 2001:db8:0:0::1"), func(s *v1.Service) {
			s.Spec.LoadBalancerIP = "2001:db8::1"
		}), nil},
		"one more": {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "192.0.2.1", "metallb.io/loadBalancerIPs", "192.0.2.1,2001:db8::1")),
			[]string{"ironlb.io/ips", "metallb.io/loadBalancerIPs", "remove one"}},
		"the synonym cannot be read": {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "192.0.2.1", "metallb.io/loadBalancerIPs", "192.0.2.1 192.0.2.2")),
			[]string{"metallb.io/loadBalancerIPs", `"192.0.2.1 192.0.2.2"`, "remove one"}},
		"only blanks": {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", " ")), nil},
		"field and another": {ccmtest.ServiceFor("s", ccmtest.Annotate("metallb.io/loadBalancerIPs", "192.0.2.1"), func(s *v1.Service) { s.Spec.LoadBalancerIP = "192.0.2.2" }),
			[]string{"metallb.io/loadBalancerIPs", "spec.loadBalancerIP", "remove one"}},
		"two pools": {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ip-pool", "a", "metallb.io/address-pool", "b")),
			[]string{"ironlb.io/ip-pool", "metallb.io/address-pool", "remove one"}},
		"two keys": {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/sharing-key", "a", "metallb.io/allow-shared-ip", "b")),
			[]string{"ironlb.io/sharing-key", "remove one"}},
		"no address":  {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "web.example")), []string{"ironlb.io/ips", `"web.example"`, "192.0.2.1"}},
		"a zone":      {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "2001:db8::1%eth0")), []string{"%eth0"}},
		"empty entry": {ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "192.0.2.1,")), []string{`""`}},
		"bad field":   {ccmtest.ServiceFor("s", func(s *v1.Service) { s.Spec.LoadBalancerIP = "1.2.3" }), []string{"spec.loadBalancerIP", `"1.2.3"`}},
	} {
		got := defaults.ClaimOf(c.svc).Invalid
		if (got == "") != (c.want == nil) {
			t.Errorf("%s: Invalid is %q", name, got)
		}
		for _, part := range c.want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q does not contain %q", name, got, part)
			}
		}
	}
}

// TestHeldByOthers: an unmanaged Service holds nothing.
func TestHeldByOthers(t *testing.T) {
	for name, change := range map[string]func(*v1.Service){
		"classed":       func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") },
		"not a lb":      func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeClusterIP },
		"being deleted": func(s *v1.Service) { s.DeletionTimestamp = &metav1.Time{} },
		"a host name": func(s *v1.Service) {
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{Hostname: "lb.example"}}
		},
	} {
		if held := defaults.ClaimOf(ccmtest.ServiceFor("s", ccmtest.Shows("192.0.2.1"), change)).Held; len(held) > 0 {
			t.Errorf("%s: holds %v", name, held)
		}
	}
}

// TestLongRequest: a tenant's text in a Service is read and repeated up to a maximum length.
func TestLongRequest(t *testing.T) {
	fields := []string{v1alpha1.AnnotationAddresses, MetallbAddresses, v1alpha1.AnnotationPool, AnnotationSharingKey}
	for _, field := range fields {
		c := defaults.ClaimOf(ccmtest.ServiceFor("s", ccmtest.Annotate(field, strings.Repeat(",", 1<<17))))
		if want := "annotation " + field + " has 131072 characters: write 253 at most"; c.Invalid != want {
			t.Errorf("%s: %.200q, want %q", field, c.Invalid, want)
		}
	}
	svc := ccmtest.ServiceFor("s", ccmtest.Annotate(AnnotationSharingKey, strings.Repeat("k", maxText)))
	svc.Spec.LoadBalancerIP = strings.Repeat("::1,", 1<<18)
	c := defaults.ClaimOf(svc)
	if len(c.Invalid) > 200 || len(c.Addresses) > 0 || len(c.SharingKey) != maxText {
		t.Errorf("%d addresses, %.200q", len(c.Addresses), c.Invalid)
	}
}
