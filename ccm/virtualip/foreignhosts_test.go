package virtualip

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// probed is the VirtualIP of a Service as the speakers report it: announced, or not because of the host.
func probed(svc *v1.Service, host string) *v1alpha1.VirtualIP {
	addr := svc.Status.LoadBalancer.Ingress[0].IP
	vip := &v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: addr}}
	vip.Spec.Addresses = []string{addr}
	vip.Spec.Services = []v1alpha1.ServiceReference{{Namespace: svc.Namespace, Name: svc.Name}}
	c := metav1.Condition{Type: v1alpha1.ConditionAnnounced, Status: metav1.ConditionTrue}
	if host != "" {
		c.Status = metav1.ConditionFalse
		vip.Status.Conflicts = []v1alpha1.AddressConflict{{Address: addr, MAC: host, Interface: "eth0"}}
	}
	vip.Status.Conditions = []metav1.Condition{c}
	return vip
}

// foreignHostFixture is a fixture with a placer that reads the speakers' reports.
type foreignHostFixture struct {
	*fixture
	placer *Placer
	now    time.Time
	events *record.FakeRecorder
}

func newForeignHostFixture(t *testing.T, addresses string, services ...*v1.Service) *foreignHostFixture {
	base := newFixture(t, addresses)
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, svc := range services {
		if err := index.Add(svc); err != nil {
			t.Fatal(err)
		}
	}
	f := &foreignHostFixture{fixture: base, now: time.Unix(1e9, 0), events: record.NewFakeRecorder(100)}
	f.placer = &Placer{
		ledger: base.ledger, outage: &lastOutage{}, events: f.events, services: corelisters.NewServiceLister(index),
		started: f.now.Add(-time.Hour),
	}
	return f
}

// found reads VirtualIPs after the given time, and returns the Events and the woken Services.
func (f *foreignHostFixture) found(after time.Duration, vips ...*v1alpha1.VirtualIP) (events string, woken []string) {
	f.now, f.woken = f.now.Add(after), nil
	have := map[string]*v1alpha1.VirtualIP{}
	for _, v := range vips {
		if v.CreationTimestamp.IsZero() {
			v.CreationTimestamp = metav1.NewTime(f.now)
		}
		have[v.Name] = v
	}
	f.placer.withholdForeign(f.now, have)
	var all []string
	for len(f.events.Events) > 0 {
		all = append(all, <-f.events.Events)
	}
	return strings.Join(all, "\n"), f.woken
}

// TestAnotherForForeignHost: if another host answers for a Service's address, the Service gets another one, with a
// Warning. No other Service gets the old one for ten minutes. A Service that requested the address keeps it, and so
// does one whose address is announced.
func TestAnotherForForeignHost(t *testing.T) {
	const host = "02:00:00:00:00:09"
	free, exact := ccmtest.ServiceFor("free"), ccmtest.ServiceFor("exact")
	exact.Annotations[v1alpha1.AnnotationAddresses] = "203.0.113.9"
	f := newForeignHostFixture(t, "203.0.113.4/30,203.0.113.9/32", free, exact)
	f.expect(f.ensure(free), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.expect(f.ensure(exact), "1 writes, 203.0.113.9 Proxy, Allocated")
	events, woken := f.found(0, probed(free, host), probed(exact, host))
	want := "Warning AddressInUse another host, 02:00:00:00:00:09, answers for 203.0.113.4"
	if !strings.HasPrefix(events, want) || strings.Contains(events, "203.0.113.9") || !slices.Contains(woken, "free") {
		t.Fatalf("Events %q, woken %v", events, woken)
	}
	taken := probed(free, host)
	f.expect(f.ensure(free), "1 writes, 203.0.113.5 Proxy, Allocated")
	f.expect(f.ensure(exact), "0 writes, 203.0.113.9 Proxy, Allocated")
	other := ccmtest.ServiceFor("other")
	f.expect(f.ensure(other), "1 writes, 203.0.113.6 Proxy, Allocated")
	if events, _ := f.found(time.Second, taken, probed(free, ""), probed(exact, host)); events != "" {
		t.Errorf("repeated: %s", events)
	}
	f.found(withheldFor+time.Second, probed(free, ""), probed(exact, host))
	later := ccmtest.ServiceFor("later")
	f.expect(f.ensure(later), "1 writes, 203.0.113.4 Proxy, Allocated")
	// Announced: the address is defended against another host's claim, nothing is moved.
	held := probed(later, host)
	held.Status.Conditions[0].Status = metav1.ConditionTrue
	if events, woken := f.found(time.Second, held); events != "" || slices.Contains(woken, "later") {
		t.Errorf("what is announced is given up: %s, %v", events, woken)
	}
}

// TestHostAnswersForAll: a Service does not go through a full pool because a host answers for every address.
func TestHostAnswersForAll(t *testing.T) {
	svc := ccmtest.ServiceFor("s1")
	f := newForeignHostFixture(t, "203.0.113.0/28", svc)
	var had []string
	for range 10 {
		f.ensure(svc)
		had = append(had, svc.Status.LoadBalancer.Ingress[0].IP)
		f.found(time.Second, probed(svc, "02:00:00:00:00:09"))
	}
	if n := len(slices.Compact(had)); n != maxReplacements+1 {
		t.Errorf("it had %d addresses, want %d: %v", n, maxReplacements+1, had)
	}
}

// TestSettledAddressStays: a Service that had its address for longer keeps it through a conflict, as when its node was
// replaced at that time: its clients use it.
func TestSettledAddressStays(t *testing.T) {
	svc := ccmtest.ServiceFor("s1")
	f := newForeignHostFixture(t, "203.0.113.4/30", svc)
	f.expect(f.ensure(svc), "1 writes, 203.0.113.4 Proxy, Allocated")
	vip := probed(svc, "02:00:00:00:00:09")
	vip.CreationTimestamp = metav1.NewTime(f.now)
	if events, woken := f.found(settledAfter+time.Second, vip); events != "" || len(woken) > 0 {
		t.Errorf("Events %q, woken %v", events, woken)
	}
	f.expect(f.ensure(svc), "0 writes, 203.0.113.4 Proxy, Allocated")
}

// TestRecreatedOnForeignHost: a Service that is created again does not wait for what is recorded of the host. If it
// requests the address it gets it at once, so that it is announced when the host has left; else it gets another one.
func TestRecreatedOnForeignHost(t *testing.T) {
	const host = "02:00:00:00:00:09"
	free, exact := ccmtest.ServiceFor("free"), ccmtest.ServiceFor("exact")
	exact.Annotations[v1alpha1.AnnotationAddresses] = "203.0.113.9"
	f := newForeignHostFixture(t, "203.0.113.4/31,203.0.113.9/32", free, exact)
	f.expect(f.ensure(free), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.expect(f.ensure(exact), "1 writes, 203.0.113.9 Proxy, Allocated")
	f.found(0, probed(free, host), probed(exact, host))
	for _, svc := range []*v1.Service{free, exact} {
		if err := f.lb.EnsureLoadBalancerDeleted(t.Context(), "", svc); err != nil {
			t.Fatal(err)
		}
		services := v1.SchemeGroupVersion.WithResource("services")
		if err := f.api.Tracker().Delete(services, svc.Namespace, svc.Name); err != nil {
			t.Fatal(err)
		}
	}
	f.found(time.Second)
	for _, svc := range []*v1.Service{free, exact} {
		svc.UID += "-again"
		svc.Status, svc.Finalizers = v1.ServiceStatus{}, nil
		delete(svc.Annotations, v1alpha1.AnnotationAllocatedFrom)
	}
	f.expect(f.ensure(free), "1 writes, 203.0.113.5 Proxy, Allocated")
	f.expect(f.ensure(exact), "1 writes, 203.0.113.9 Proxy, Allocated")
}
