package allocation

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// TestForeign: a Service that shows an address of another controller is not changed.
func TestForeign(t *testing.T) {
	s := ccmtest.ServiceFor("s", ccmtest.Shows("192.0.2.99"))
	f := newFixture(t, "203.0.113.4/31", s)
	f.Expect(f.Ensure(s), "0 writes, 192.0.2.99 Proxy")
	f.expectEvents()
	if held := f.Ledger.Standing(s); len(held) != 0 {
		t.Errorf("recorded as ours: %v", held)
	}
	// A pool that has the address takes the Service over.
	r, _ := pools.ParseRanges([]string{"192.0.2.99/32"})
	f.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	f.Expect(f.Ensure(s), "1 writes, 192.0.2.99 Proxy, Allocated")
}

// TestWhoseService: another class, or none with --only-class, is another controller's, unless a record or a finalizer
// shows that the Service was served here.
func TestWhoseService(t *testing.T) {
	class := func(name string) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To(name) }
	}
	for name, c := range map[string]struct {
		onlyClass bool
		svc       *v1.Service
		foreign   bool
	}{
		"no class":                         {svc: ccmtest.ServiceFor("s")},
		"no class, only class":             {onlyClass: true, svc: ccmtest.ServiceFor("s"), foreign: true},
		"our class":                        {svc: ccmtest.ServiceFor("s", class("ironlb.io/lb"))},
		"our class, only class":            {onlyClass: true, svc: ccmtest.ServiceFor("s", class("ironlb.io/lb"))},
		"another class":                    {svc: ccmtest.ServiceFor("s", class("example.com/lb")), foreign: true},
		"another class, served before":     {svc: ccmtest.ServiceFor("s", class("example.com/lb"), ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"))},
		"another's address":                {svc: ccmtest.ServiceFor("s", ccmtest.Shows("192.0.2.99")), foreign: true},
		"an address of a pool":             {svc: ccmtest.ServiceFor("s", ccmtest.Shows("203.0.113.4"))},
		"another class, address of a pool": {svc: ccmtest.ServiceFor("s", class("example.com/lb"), ccmtest.Shows("203.0.113.4")), foreign: true},
	} {
		f := newFixture(t, "203.0.113.4/31")
		scope := servicerecord.DefaultScope()
		scope.OnlyClass = c.onlyClass
		f.Ledger.settings = &scope
		if got := f.Ledger.Foreign(c.svc); got != c.foreign {
			t.Errorf("%s: foreign: %t", name, got)
		}
	}
}

// TestNewPoolOverShown: a new pool contains an address that another controller's Service shows. The pool gives that
// address to no other Service, not even to one that already waited, in any order of evaluation.
func TestNewPoolOverShown(t *testing.T) {
	theirs, waits := ccmtest.ServiceFor("theirs", ccmtest.Shows("192.0.2.99")), ccmtest.ServiceFor("waits")
	f := newFixture(t, "203.0.113.4/32", theirs, waits, ccmtest.ServiceFor("first"))
	f.Ledger.services = func() []*v1.Service { return []*v1.Service{theirs, waits} }
	f.Expect(f.Ensure(ccmtest.ServiceFor("first")), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.Expect(f.Ensure(waits), "1 writes, PoolExhausted")
	f.Expect(f.Ensure(theirs), "0 writes, 192.0.2.99 Proxy")
	web, _ := pools.ParseRanges([]string{"203.0.113.4/32"})
	more, _ := pools.ParseRanges([]string{"192.0.2.99/32"})
	f.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: web, AutoAssign: true}, {Name: "more", Ranges: more, AutoAssign: true}})
	f.Expect(f.Ensure(waits), "1 writes, PoolExhausted")
	f.Expect(f.Ensure(theirs), "1 writes, 192.0.2.99 Proxy, Allocated")
	if held := f.Ledger.alloc.Holders(netip.MustParseAddr("192.0.2.99")); len(held) != 1 || held[0].Name != "theirs" {
		t.Errorf("held by %v", held)
	}
}

// cached lets the ledger read the Services as from its cache, and returns it.
func (f *fixture) cached() map[string]*v1.Service {
	all := map[string]*v1.Service{}
	f.Ledger.cached = func(key pools.ServiceKey) *v1.Service { return all[key.Name] }
	return all
}

// TestShownIsNotAllocated: no Service gets an address that another one shows: of another class, as an external IP, or
// while it is being deleted.
func TestShownIsNotAllocated(t *testing.T) {
	f := newFixture(t, "203.0.113.4/30")
	cache := f.cached()
	for _, svc := range []*v1.Service{
		ccmtest.ServiceFor("metallb", ccmtest.Shows("203.0.113.4"), func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("metallb.io/lb") }),
		ccmtest.ServiceFor("external", ccmtest.Plain, func(s *v1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.5"} }),
		ccmtest.ServiceFor("ends", ccmtest.Shows("203.0.113.6"), ccmtest.Given("web"), ccmtest.Deleted),
	} {
		cache[svc.Name] = svc
		f.Ledger.shown(svc)
	}
	f.Adopt()
	s := ccmtest.ServiceFor("s")
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.7 Proxy, Allocated")
	waits := ccmtest.ServiceFor("waits")
	f.Expect(f.Ensure(waits), "1 writes, PoolExhausted")

	// Given up by the other controller. The Services that hold their addresses are of no concern.
	theirs := cache["metallb"]
	cache["s"], cache["metallb"] = ccmtest.ServiceFor("s", ccmtest.Shows("203.0.113.7"), ccmtest.Given("web")), nil
	f.Ledger.shown(cache["s"])
	f.Woken = nil
	f.Ledger.shown(theirs)
	if !slices.Equal(f.Woken, []string{"waits"}) {
		t.Errorf("woken %v", f.Woken)
	}
	if st, _ := f.Ledger.PoolStatus("web"); len(st.Withheld) != 2 {
		t.Errorf("withheld: %v", st.Withheld)
	}

	// A Service that is being deleted is released before its object is gone.
	f.Expect(f.Ensure(waits), "1 writes, 203.0.113.4 Proxy, Allocated")
	next := ccmtest.ServiceFor("next")
	f.Expect(f.Ensure(next), "1 writes, PoolExhausted")
	cache["s"] = ccmtest.ServiceFor("s", ccmtest.Shows("203.0.113.7"), ccmtest.Given("web"), ccmtest.Deleted)
	f.Ledger.shown(cache["s"])
	if err := f.Ledger.Release(t.Context(), pools.ServiceKey{Namespace: "default", Name: "s"}, cache["s"].UID); err != nil {
		t.Fatal(err)
	}
	f.Expect(f.Ensure(next), "0 writes, PoolExhausted")
	delete(cache, "s")
	f.Ledger.shown(s)
	f.Expect(f.Ensure(next), "1 writes, 203.0.113.7 Proxy, Allocated")
}

// TestDeletedWithoutLeader: the address of a Service that was deleted while no leader ran cools down once it is gone.
func TestDeletedWithoutLeader(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32")
	web, _ := pools.ParseRanges([]string{"203.0.113.4/32"})
	f.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: web, AutoAssign: true, ReuseAfter: time.Hour}})
	cache := f.cached()
	ends := ccmtest.ServiceFor("ends", ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"), ccmtest.Deleted)
	cache["ends"] = ends
	f.Adopt(ends) // also if its event comes later
	f.Expect(f.Ensure(ccmtest.ServiceFor("s")), "1 writes, PoolExhausted")
	delete(cache, "ends")
	f.Ledger.shown(ends)
	st, _ := f.Ledger.PoolStatus("web")
	if len(st.CoolDowns) != 1 || st.CoolDowns[0].By.Name != "ends" || len(st.Withheld) != 0 {
		t.Errorf("cool-downs %v, withheld %v", st.CoolDowns, st.Withheld)
	}
	f.Expect(f.Ensure(ccmtest.ServiceFor("s")), "1 writes, PoolExhausted")
}

// TestOlderOfThatName: a late copy of a deleted Service does not release the address of its successor.
func TestOlderOfThatName(t *testing.T) {
	version := func(uid types.UID, v string) func(*v1.Service) {
		return func(s *v1.Service) { s.UID, s.ResourceVersion = uid, v }
	}
	now := ccmtest.ServiceFor("s", ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"), version("2", "20"))
	f := newFixture(t, "203.0.113.4/31", now)
	if _, err := f.Ledger.Assign(t.Context(), ccmtest.ServiceFor("s", version("1", "10"))); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if held := f.Ledger.Standing(now); len(held) != 1 {
		t.Errorf("the successor holds %v", held)
	}
}

// TestWaitsAndIsTakenOver: another controller serves a Service that waited here. Its address stays, whether it came
// while ironlb-ccm ran or before its start; the condition is removed. No Event is written about a Service without a
// class that no pool accepts.
func TestWaitsAndIsTakenOver(t *testing.T) {
	six := func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol} }
	f := newFixture(t, "203.0.113.4/31")
	f.Adopt()
	s := ccmtest.ServiceFor("s", six)
	f.Expect(f.Ensure(s), "1 writes, NoPool")
	f.expectEvents()
	waits, err := f.Api.CoreV1().Services("default").Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil || len(waits.Finalizers) > 0 {
		t.Fatalf("%v, finalizers %v", err, waits.Finalizers)
	}
	ccmtest.Shows("9.9.9.9")(waits)
	if err := f.Api.Tracker().Update(v1.SchemeGroupVersion.WithResource("services"), waits, "default"); err != nil {
		t.Fatal(err)
	}
	before := waits.DeepCopy()
	f.Expect(f.Ensure(waits), "1 writes, 9.9.9.9 Proxy")
	if f.Ledger.hasEntry(waits) {
		t.Error("it still waits")
	}

	after := newFixture(t, "203.0.113.4/31", before)
	if held := after.Ledger.Standing(before); len(held) > 0 {
		t.Errorf("adopted: %v", held)
	}
	after.Expect(after.Ensure(before), "1 writes, 9.9.9.9 Proxy")
	after.expectEvents()
}
