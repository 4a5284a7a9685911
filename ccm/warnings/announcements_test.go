package warnings

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// fixture has announcements with their own clock, a Service default/web with 203.0.113.4 from pool web, and the objects
// of the case.
type fixture struct {
	*announcements
	clock       time.Time
	svc         *v1.Service
	changedKeys []pools.ServiceKey
}

func newFixture() *fixture {
	f := &fixture{announcements: newAnnouncements(NewUnserved()), clock: time.Unix(1000, 0)}
	f.svc = ccmtest.WarnedService("web", func(svc *v1.Service) { svc.Labels = map[string]string{"app": "web"} })
	f.announcements.now = func() time.Time { return f.clock }
	f.announcements.changed = func(key pools.ServiceKey) { f.changedKeys = append(f.changedKeys, key) }
	f.unserved.onChange(func() { f.changed(allServices) })
	f.announcements.held = func(*v1.Service) []pools.Address {
		return []pools.Address{{Addr: netip.MustParseAddr("203.0.113.4"), Pool: "web"}}
	}
	f.set(&v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"tier": "gold"}}})
	return f
}

func (f *fixture) set(objects ...any) {
	for _, o := range objects {
		f.handler().OnUpdate(nil, o)
	}
}

// summary returns the warnings, one per line, and when there may be more.
func (f *fixture) summary() string {
	all, recheck := f.warnings(f.svc)
	var lines []string
	for _, one := range all {
		lines = append(lines, one.reason+": "+one.message)
	}
	if recheck > 0 {
		lines = append(lines, "recheck in "+recheck.String())
	}
	return strings.Join(lines, "\n")
}

func l2(name string, spec v1alpha1.L2AdvertisementSpec) *v1alpha1.L2Advertisement {
	return &v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

const bare = "NotAdvertised: No L2Advertisement or BGPAdvertisement covers 203.0.113.4 from pool web: " +
	"no node announces it. Create one, or widen its ipAddressPools, ipAddressPoolSelectors or serviceSelectors"

func TestNotAdvertised(t *testing.T) {
	labelled := func(key, value string) []metav1.LabelSelector {
		return []metav1.LabelSelector{{MatchLabels: map[string]string{key: value}}}
	}
	bgpFor := func(pool string) *v1alpha1.BGPAdvertisement {
		b := &v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
		b.Spec.IPAddressPools = []string{pool}
		return b
	}
	type spec = v1alpha1.L2AdvertisementSpec
	for name, c := range map[string]struct {
		ad   any
		want string
	}{
		"none":               {nil, bare},
		"of all":             {l2("a", spec{}), ""},
		"of another pool":    {l2("a", spec{IPAddressPools: []string{"db"}}), bare},
		"of the pool":        {l2("a", spec{IPAddressPools: []string{"web"}}), ""},
		"by label":           {l2("a", spec{IPAddressPoolSelectors: labelled("tier", "gold")}), ""},
		"by another label":   {l2("a", spec{IPAddressPoolSelectors: labelled("tier", "tin")}), bare},
		"of the Service":     {l2("a", spec{ServiceSelectors: labelled("app", "web")}), ""},
		"of another Service": {l2("a", spec{ServiceSelectors: labelled("app", "db")}), bare},
		"by BGP":             {bgpFor("web"), ""},
		"another by BGP":     {bgpFor("db"), bare},
	} {
		f := newFixture()
		if c.ad != nil {
			f.set(c.ad)
		}
		if got := f.summary(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAffinityOverBGP: a router may break session affinity unless the Service is forwarded directly.
func TestAffinityOverBGP(t *testing.T) {
	all := &v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	direct := func(f *fixture) {
		f.svc.Annotations = map[string]string{v1alpha1.AnnotationForwarding: string(v1alpha1.ForwardingDirect)}
	}
	const want = "AffinityPerNode: sessionAffinity is ClientIP, but each node that announces 203.0.113.4 from pool web over BGP chooses endpoints " +
		"alone: a router that spreads connections by port breaks the affinity. Set annotation ironlb.io/forwarding to direct, or have the router " +
		"spread by source address"
	for name, c := range map[string]struct {
		affinity v1.ServiceAffinity
		ad       any
		change   func(*fixture)
		want     string
	}{
		"over BGP":              {v1.ServiceAffinityClientIP, all, nil, want},
		"by ARP":                {v1.ServiceAffinityClientIP, l2("a", v1alpha1.L2AdvertisementSpec{}), nil, ""},
		"without affinity":      {v1.ServiceAffinityNone, all, nil, ""},
		"directly":              {v1.ServiceAffinityClientIP, all, direct, ""},
		"directly, by default":  {v1.ServiceAffinityClientIP, all, func(f *fixture) { f.forwarding = v1alpha1.ForwardingDirect }, ""},
		"an address of no pool": {v1.ServiceAffinityClientIP, all, func(f *fixture) { f.held = func(*v1.Service) []pools.Address { return nil } }, ""},
	} {
		f := newFixture()
		f.svc.Spec.SessionAffinity = c.affinity
		if c.change != nil {
			c.change(f)
		}
		f.set(c.ad)
		if got := f.summary(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAdvertisedLater: a new address has seven seconds; a deleted advertisement is reported at once.
func TestAdvertisedLater(t *testing.T) {
	f := newFixture()
	since := metav1.NewTime(f.clock.Add(-4 * time.Second))
	f.svc.Status.Conditions = []metav1.Condition{{Type: servicerecord.ConditionAllocated, LastTransitionTime: since}}
	if got := f.summary(); got != "recheck in 3s" {
		t.Errorf("after 4 s: %q", got)
	}
	ad := l2("a", v1alpha1.L2AdvertisementSpec{})
	f.set(ad)
	f.clock = f.clock.Add(6 * time.Second)
	if got := f.summary(); got != "" {
		t.Errorf("advertised: %q", got)
	}
	f.changedKeys = nil
	f.handler().OnDelete(ad)
	if got := f.summary(); got != bare || !slices.Equal(f.changedKeys, affectsAll) {
		t.Errorf("without the advertisement: %q, changed %v", got, f.changedKeys)
	}
}

// announced returns the condition Announced.
func announced(status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionAnnounced, Status: status, Reason: reason}
}

// TestReasonOfAWhile: a reason counts from when it appeared, not from when the address was last announced.
func TestReasonOfAWhile(t *testing.T) {
	f := newFixture()
	f.set(l2("a", v1alpha1.L2AdvertisementSpec{}))
	f.clock = f.clock.Add(time.Minute)
	for _, step := range []struct{ reason, want string }{
		{"NoLocalEndpoint", "NoLocalEndpoint: No node announces 203.0.113.4: "},
		{"Probing", "recheck in 7s"},
		{"NodeDeclined", "recheck in 7s"},
	} {
		f.set(ccmtest.VIPOf("203.0.113.4", announced(metav1.ConditionFalse, step.reason)))
		if got := f.summary(); got != step.want {
			t.Errorf("%s: %q, want %q", step.reason, got, step.want)
		}
		f.clock = f.clock.Add(2 * time.Second)
	}
	if got := f.summary(); got != "recheck in 5s" {
		t.Errorf("NodeDeclined, later: %q", got)
	}
}

// TestMissingAdvertisementIsTheCause: without an advertisement, what the speakers report of the address is its effect.
func TestMissingAdvertisementIsTheCause(t *testing.T) {
	f := newFixture()
	f.set(ccmtest.VIPOf("203.0.113.4", announced(metav1.ConditionFalse, "NoAdvertisement")))
	if got := f.summary(); got != bare {
		t.Errorf("%q, want %q", got, bare)
	}
}

// TestConflictFlaps: one Event for a conflict that several nodes report one after the other.
func TestConflictFlaps(t *testing.T) {
	f := newFixture()
	f.set(l2("a", v1alpha1.L2AdvertisementSpec{}))
	f.announcements.now = time.Now
	p, stop := startPublisherOf(t, fake.NewClientset(f.svc), newGuard(&Settings{}), f.announcements)
	for _, node := range []string{"a", "b", "c"} {
		conflict := metav1.Condition{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionTrue, Reason: "AddressConflict", Message: "node " + node + ": another host"}
		f.set(ccmtest.VIPOf("203.0.113.4", announced(metav1.ConditionFalse, "AddressConflict"), conflict))
		p.condition("web", "AddressConflict")
		f.set(ccmtest.VIPOf("203.0.113.4", announced(metav1.ConditionFalse, "Probing")))
		p.condition("web", "")
	}
	stop()
	p.event("Warning AddressConflict 203.0.113.4: node a: another host")
	if len(p.events) > 0 {
		t.Errorf("one more Event: %q", <-p.events)
	}
}

// TestNotAnnounced: the conditions of the VirtualIP appear on the Service. If the state may end by itself, they appear
// after the grace period.
func TestNotAnnounced(t *testing.T) {
	isAnnounced := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionAnnounced, Status: status, Reason: reason, Message: message}
	}
	const kind, none = v1alpha1.ConditionNoEligibleNode, "NoEligibleNode: No eligible node for 203.0.113.4. Every node is out"
	ineligible := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "NodesExcluded", Message: "Every node is out"}
	eligible := metav1.Condition{Type: kind, Status: metav1.ConditionFalse}
	unplaced := ccmtest.VIPOf("203.0.113.4", ineligible, isAnnounced(metav1.ConditionFalse, kind, "no node may answer for it"))
	unplaced.Spec.Nodes = nil
	local := "no node has an endpoint"
	for name, c := range map[string]struct {
		vip        *v1alpha1.VirtualIP
		now, later string
	}{
		"announced":   {vip: ccmtest.VIPOf("203.0.113.4", eligible, isAnnounced(metav1.ConditionTrue, "Owner", ""))},
		"no node may": {unplaced, none, none},
		"not announced": {vip: ccmtest.VIPOf("203.0.113.4", eligible, isAnnounced(metav1.ConditionFalse, "NoLocalEndpoint", local)),
			now: "recheck in 2s", later: "NoLocalEndpoint: No node announces 203.0.113.4: " + local},
		"not direct": {
			vip: ccmtest.VIPOf("203.0.113.4", eligible, isAnnounced(metav1.ConditionTrue, "Owner", ""),
				metav1.Condition{Type: v1alpha1.ConditionNotDirect, Status: metav1.ConditionTrue, Reason: "NodeWithoutTunnel", Message: "why"}),
			now: "recheck in 2s", later: "NodeWithoutTunnel: 203.0.113.4: why",
		},
		"no speaker yet": {vip: ccmtest.VIPOf("203.0.113.4")},
	} {
		f := newFixture()
		f.set(l2("a", v1alpha1.L2AdvertisementSpec{}))
		f.changedKeys = nil
		f.set(c.vip)
		if want := []pools.ServiceKey{servicerecord.KeyOf(f.svc)}; !slices.Equal(f.changedKeys, want) {
			t.Errorf("%s: changed %v, want %v", name, f.changedKeys, want)
		}
		if got := f.summary(); got != c.now {
			t.Errorf("%s, at once: %q, want %q", name, got, c.now)
		}
		f.clock = f.clock.Add(20 * time.Second)
		if got := f.summary(); got != c.later {
			t.Errorf("%s, later: %q, want %q", name, got, c.later)
		}
		f.handler().OnDelete(c.vip)
		if got := f.summary(); got != "" || len(f.vips)+len(f.of) > 0 {
			t.Errorf("%s, deleted: %q, left %v %v", name, got, f.vips, f.of)
		}
	}
}

// TestNotAnnouncedByBGP: the BGP controller's warning about an address of the Service counts. All Services are
// evaluated again only when a warning changed.
func TestNotAnnouncedByBGP(t *testing.T) {
	f := newFixture()
	f.set(l2("a", v1alpha1.L2AdvertisementSpec{}))
	f.unserved.Expect()
	of := func(address string) map[netip.Addr]condition.Problem {
		return map[netip.Addr]condition.Problem{netip.MustParseAddr(address): {Reason: "NoPeer", Message: address + " by BGP: why"}}
	}
	for _, step := range []struct {
		what     string
		unserved map[netip.Addr]condition.Problem
		want     string
		changed  bool
	}{
		{"unserved", of("203.0.113.4"), "NoPeer: 203.0.113.4 by BGP: why", true},
		{"the same", of("203.0.113.4"), "NoPeer: 203.0.113.4 by BGP: why", false},
		{"another address", of("203.0.113.5"), "", true},
		{"none", nil, "", true},
	} {
		before := f.unserved.known()
		f.changedKeys = nil
		f.unserved.Set(step.unserved)
		if got := f.summary(); got != step.want || (len(f.changedKeys) > 0) != step.changed || before != (step.what != "unserved") {
			t.Errorf("%s: %q, changed %v, complete before: %v", step.what, got, f.changedKeys, before)
		}
	}
}

// TestUnannouncedIsOnTheService: the warning is an Event and a condition; the condition ends with the cause.
func TestUnannouncedIsOnTheService(t *testing.T) {
	f := newFixture()
	f.announcements.now = time.Now
	f.set(ccmtest.VIPOf("203.0.113.4", metav1.Condition{
		Type: v1alpha1.ConditionNoEligibleNode, Status: metav1.ConditionTrue, Message: "Every node is out",
	}))
	p, stop := startPublisherOf(t, fake.NewClientset(f.svc), newGuard(&Settings{}), f.announcements)
	defer stop()
	p.event("Warning NotAdvertised No L2Advertisement or BGPAdvertisement covers 203.0.113.4")
	p.condition("web", "NotAdvertised")
	f.set(l2("a", v1alpha1.L2AdvertisementSpec{}))
	p.event("Warning NoEligibleNode No eligible node for 203.0.113.4. Every node is out")
	p.condition("web", "NoEligibleNode")
	f.set(ccmtest.VIPOf("203.0.113.4", metav1.Condition{Type: v1alpha1.ConditionAnnounced, Status: metav1.ConditionTrue}))
	p.condition("web", "")
}
