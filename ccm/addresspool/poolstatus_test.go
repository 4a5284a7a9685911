package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func TestPoolConditions(t *testing.T) {
	var many []pools.ServiceKey
	for i := range 12 {
		many = append(many, pools.ServiceKey{Namespace: "ns", Name: fmt.Sprintf("s%02d", i)})
	}
	for name, c := range map[string]struct {
		status  pools.PoolStatus
		problem string
		good    string
		want    []string // "Type=Status Reason: part of the message", sorted
	}{
		"in use": {pools.PoolStatus{State: pools.PoolReady}, "", "",
			[]string{"Exhausted=False SomeFree: ", "Overlapping=False NoOverlap: ", "Ready=True Ready: in use"}},
		"full": {pools.PoolStatus{State: pools.PoolReady, Exhausted: []pools.Family{pools.IPv4, pools.IPv6}}, "", "",
			[]string{"Exhausted=True NoneFree: No IPv4 and no IPv6 address is free. Add", "Overlapping=False NoOverlap: ", "Ready=True Ready: in use"}},
		"overlapping": {pools.PoolStatus{State: pools.PoolOverlaps, Overlaps: "old"}, "", "",
			[]string{"Exhausted=False SomeFree: ", "Overlapping=True Overlapping: older pool old", "Ready=False Overlapping: older pool old"}},
		"overlapping itself": {pools.PoolStatus{State: pools.PoolInvalid}, "", "",
			[]string{"Exhausted=False SomeFree: ", "Overlapping=False NoOverlap: ", "Ready=False Invalid: spec.addresses"}},
		"unreadable": {pools.PoolStatus{}, "spec.addresses[0]: what?", "",
			[]string{"Exhausted=False SomeFree: ", "Overlapping=False NoOverlap: ", "Ready=False Invalid: spec.addresses[0]: what?"}},
		"unreadable now": {pools.PoolStatus{State: pools.PoolReady}, "spec.addresses[0]: what?", `{"addresses":[]}`,
			[]string{"Exhausted=False SomeFree: ", "Overlapping=False NoOverlap: ", "Ready=False Invalid: The last good configuration stays in use"}},
		"unreadable now, and overlapping": {pools.PoolStatus{State: pools.PoolOverlaps, Overlaps: "old"}, "spec.addresses[0]: what?", `{"addresses":[]}`,
			[]string{"Exhausted=False SomeFree: ", "Overlapping=True Overlapping: ", "Ready=False Invalid: is not used either: it overlaps the older pool old"}},
		"never readable": {pools.PoolStatus{State: pools.PoolNotRead}, "spec.addresses[0]: what?", "",
			[]string{"Exhausted=False SomeFree: ", "Overlapping=False NoOverlap: ", "Ready=False Invalid: spec.addresses[0]: what?. Until then it assigns no addresses; Services keep the ones that they hold"}},
		"with addresses in use elsewhere": {pools.PoolStatus{State: pools.PoolReady, Withheld: []pools.WithheldAddress{
			{Addr: netip.MustParseAddr("192.0.2.1"), By: []pools.Refusal{{Rule: pools.RuleNode, Of: "a"}, {Rule: pools.RuleGateway, Of: "b"}}},
			{Addr: netip.MustParseAddr("192.0.2.2"), By: []pools.Refusal{{Rule: pools.RuleService, Of: "ns/x"}}, Holders: many[:2]},
		}}, "", "",
			[]string{"Exhausted=False SomeFree: ", "Overlapping=False NoOverlap: ", "Ready=True Ready: in use",
				"Withheld=True InUseElsewhere: 192.0.2.1 (is an address of Node a and is a gateway of Node b), " +
					"192.0.2.2 (is in status.loadBalancer or spec.externalIPs of Service ns/x; still held by ns/s00 and ns/s01)"}},
		"draining": {pools.PoolStatus{State: pools.PoolReady, Draining: many}, "", "",
			[]string{"Draining=True HeldOutside: ns/s00, ns/s01", "Exhausted=False SomeFree: ", "Overlapping=False NoOverlap: ", "Ready=True Ready: in use"}},
	} {
		obj := &v1alpha1.IPAddressPool{}
		obj.Generation = 7
		got := poolStatusOf(obj, c.status, c.problem, c.good)
		if len(got.Conditions) != len(c.want) {
			t.Errorf("%s: got %+v", name, got.Conditions)
			continue
		}
		slices.SortFunc(got.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
		for i, cond := range got.Conditions {
			head, part, _ := strings.Cut(c.want[i], ": ")
			if h := fmt.Sprintf("%s=%s %s", cond.Type, cond.Status, cond.Reason); h != head || !strings.Contains(cond.Message, part) {
				t.Errorf("%s: got %s: %s, want %s", name, h, cond.Message, c.want[i])
			}
			if cond.ObservedGeneration != 7 {
				t.Errorf("%s: %s is of generation %d", name, cond.Type, cond.ObservedGeneration)
			}
		}
		// An equal status causes no write.
		obj.Status = got
		if again := poolStatusOf(obj, c.status, c.problem, c.good); !slices.Equal(again.Conditions, got.Conditions) {
			t.Errorf("%s: again %+v, want %+v", name, again.Conditions, got.Conditions)
		}
	}
	// The conditions Draining and Withheld are cleared when their cause ends.
	obj := &v1alpha1.IPAddressPool{}
	obj.Status = poolStatusOf(obj, pools.PoolStatus{State: pools.PoolReady, Draining: many, Withheld: []pools.WithheldAddress{{}}}, "", "")
	obj.Status = poolStatusOf(obj, pools.PoolStatus{State: pools.PoolReady}, "", "")
	for _, kind := range []string{"Draining", "Withheld"} {
		i := slices.IndexFunc(obj.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind })
		if i < 0 || obj.Status.Conditions[i].Status != "False" {
			t.Errorf("%s: got %+v", kind, obj.Status.Conditions)
		}
	}
}

// TestFirstPoolStatus: nothing is written about a pool that has not been evaluated. The first status has a reason in
// each condition.
func TestFirstPoolStatus(t *testing.T) {
	f := newFixture(t, webPool("203.0.113.4/31"))
	if err := f.status.Write(t.Context()); err != nil || f.writes > 0 {
		t.Errorf("%d writes before the pool is known, error %v", f.writes, err)
	}
	for _, c := range f.process().Status.Conditions {
		if c.Reason == "" {
			t.Errorf("condition %s has no reason", c.Type)
		}
	}
	if f.writes != 1 {
		t.Errorf("%d writes, want 1", f.writes)
	}
}

// TestPoolNotReady: an invalid pool, or one that overlaps an older one, has one Warning per cause, none from the next
// leader, and a metric of 0.
func TestPoolNotReady(t *testing.T) {
	f := newFixture(t, webPool("2001:db8::/64"))
	expectEvents := func(what string, want ...string) {
		t.Helper()
		var got []string
		for len(f.events.Events) > 0 {
			got = append(got, <-f.events.Events)
		}
		same := slices.EqualFunc(got, want, func(e, w string) bool { return strings.HasPrefix(e, w) })
		if !same {
			t.Errorf("%s: Events %q, want %q", what, got, want)
		}
	}
	ready := func(pool string, want float64) {
		t.Helper()
		n, err := testutil.GetGaugeMetricValue(poolReady.WithLabelValues(pool))
		if err != nil || n != want {
			t.Errorf("ironlb_pool_ready of %s: %v, %v, want %v", pool, n, err, want)
		}
	}
	f.process()
	expectEvents("in use")
	ready("web", 1)

	f.edit(unreadable...)
	f.process()
	expectEvents("overlapping IPv6 ranges", "Warning Invalid spec.addresses[1]: ")
	ready("web", 0)
	f.process()
	expectEvents("the same again")
	f.edit("2001:db8::20-2001:db8::1:0", "2001:db8::1:9-2001:db8::8")
	f.process()
	expectEvents("a reversed IPv6 range", "Warning Invalid spec.addresses[1]: ")
	f.lead()
	f.process()
	expectEvents("the next leader")
	f.edit("2001:db8::/64")
	f.process()
	expectEvents("in use again")
	ready("web", 1)

	later := webPool("2001:db8::1/128")
	later.Name, later.UID, later.CreationTimestamp = "web2", "2", metav1.Unix(1000, 0)
	if err := f.client.Create(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	f.process()
	expectEvents("overlaps an older one", "Warning Overlapping Not used: it overlaps the older pool web")
	ready("web", 1)
	ready("web2", 0)
}

// TestPoolRepeatsSelector: the pool is in use, and reports the repeated selector.
func TestPoolRepeatsSelector(t *testing.T) {
	pool := webPool("203.0.113.4/31")
	app := metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	pool.Spec.ServiceAllocation = &v1alpha1.ServiceAllocation{ServiceSelectors: []metav1.LabelSelector{app, {}, app}}
	f := newFixture(t, pool)
	ccmtest.Expect(t, f.ready(f.process()), "True Ready The pool is in use. spec.serviceAllocation.serviceSelectors[2] is the same as [0]: "+
		"remove one of them, or correct it")
}
