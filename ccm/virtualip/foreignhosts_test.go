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

// survey is a placer that reads the speakers' reports, together with a desk.
type survey struct {
	*desk
	placer *Placer
	now    time.Time
	events *record.FakeRecorder
}

func newSurvey(t *testing.T, addresses string, services ...*v1.Service) *survey {
	d := newDesk(t, addresses)
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, svc := range services {
		if err := index.Add(svc); err != nil {
			t.Fatal(err)
		}
	}
	s := &survey{desk: d, now: time.Unix(1e9, 0), events: record.NewFakeRecorder(100)}
	s.placer = &Placer{
		ledger: d.ledger, outage: &lastOutage{}, events: s.events, services: corelisters.NewServiceLister(index),
		started: s.now.Add(-time.Hour),
	}
	return s
}

// found reads VirtualIPs after the given time, and returns the Events and the woken Services.
func (s *survey) found(after time.Duration, vips ...*v1alpha1.VirtualIP) (events string, woken []string) {
	s.now, s.woken = s.now.Add(after), nil
	have := map[string]*v1alpha1.VirtualIP{}
	for _, v := range vips {
		if v.CreationTimestamp.IsZero() {
			v.CreationTimestamp = metav1.NewTime(s.now)
		}
		have[v.Name] = v
	}
	s.placer.withholdForeign(s.now, have)
	var all []string
	for len(s.events.Events) > 0 {
		all = append(all, <-s.events.Events)
	}
	return strings.Join(all, "\n"), s.woken
}

// TestAnotherForForeignHost: if another host answers for a Service's address, the Service gets another one, with a
// Warning. No other Service gets the old one for ten minutes. A Service that requested the address keeps it, and so
// does one whose address is announced.
func TestAnotherForForeignHost(t *testing.T) {
	const host = "02:00:00:00:00:09"
	free, exact := ccmtest.ServiceFor("free"), ccmtest.ServiceFor("exact")
	exact.Annotations[v1alpha1.AnnotationAddresses] = "203.0.113.9"
	s := newSurvey(t, "203.0.113.4/30,203.0.113.9/32", free, exact)
	s.expect(s.ensure(free), "1 writes, 203.0.113.4 Proxy, Allocated")
	s.expect(s.ensure(exact), "1 writes, 203.0.113.9 Proxy, Allocated")
	events, woken := s.found(0, probed(free, host), probed(exact, host))
	want := "Warning AddressInUse another host, 02:00:00:00:00:09, answers for 203.0.113.4"
	if !strings.HasPrefix(events, want) || strings.Contains(events, "203.0.113.9") || !slices.Contains(woken, "free") {
		t.Fatalf("Events %q, woken %v", events, woken)
	}
	taken := probed(free, host)
	s.expect(s.ensure(free), "1 writes, 203.0.113.5 Proxy, Allocated")
	s.expect(s.ensure(exact), "0 writes, 203.0.113.9 Proxy, Allocated")
	other := ccmtest.ServiceFor("other")
	s.expect(s.ensure(other), "1 writes, 203.0.113.6 Proxy, Allocated")
	if events, _ := s.found(time.Second, taken, probed(free, ""), probed(exact, host)); events != "" {
		t.Errorf("repeated: %s", events)
	}
	s.found(withheldFor+time.Second, probed(free, ""), probed(exact, host))
	later := ccmtest.ServiceFor("later")
	s.expect(s.ensure(later), "1 writes, 203.0.113.4 Proxy, Allocated")
	// Announced: the address is defended against another host's claim, nothing is moved.
	held := probed(later, host)
	held.Status.Conditions[0].Status = metav1.ConditionTrue
	if events, woken := s.found(time.Second, held); events != "" || slices.Contains(woken, "later") {
		t.Errorf("what is announced is given up: %s, %v", events, woken)
	}
}

// TestHostAnswersForAll: a Service does not go through a full pool because a host answers for every address.
func TestHostAnswersForAll(t *testing.T) {
	svc := ccmtest.ServiceFor("s1")
	s := newSurvey(t, "203.0.113.0/28", svc)
	var had []string
	for range 10 {
		s.ensure(svc)
		had = append(had, svc.Status.LoadBalancer.Ingress[0].IP)
		s.found(time.Second, probed(svc, "02:00:00:00:00:09"))
	}
	if n := len(slices.Compact(had)); n != maxReplacements+1 {
		t.Errorf("it had %d addresses, want %d: %v", n, maxReplacements+1, had)
	}
}

// TestSettledAddressStays: a Service that had its address for longer keeps it through a conflict, as when its node was
// replaced at that time: its clients use it.
func TestSettledAddressStays(t *testing.T) {
	svc := ccmtest.ServiceFor("s1")
	s := newSurvey(t, "203.0.113.4/30", svc)
	s.expect(s.ensure(svc), "1 writes, 203.0.113.4 Proxy, Allocated")
	vip := probed(svc, "02:00:00:00:00:09")
	vip.CreationTimestamp = metav1.NewTime(s.now)
	if events, woken := s.found(settledAfter+time.Second, vip); events != "" || len(woken) > 0 {
		t.Errorf("Events %q, woken %v", events, woken)
	}
	s.expect(s.ensure(svc), "0 writes, 203.0.113.4 Proxy, Allocated")
}

// TestRecreatedOnForeignHost: a Service that is created again does not wait for what is recorded of the host. If it
// requests the address it gets it at once, so that it is announced when the host has left; else it gets another one.
func TestRecreatedOnForeignHost(t *testing.T) {
	const host = "02:00:00:00:00:09"
	free, exact := ccmtest.ServiceFor("free"), ccmtest.ServiceFor("exact")
	exact.Annotations[v1alpha1.AnnotationAddresses] = "203.0.113.9"
	s := newSurvey(t, "203.0.113.4/31,203.0.113.9/32", free, exact)
	s.expect(s.ensure(free), "1 writes, 203.0.113.4 Proxy, Allocated")
	s.expect(s.ensure(exact), "1 writes, 203.0.113.9 Proxy, Allocated")
	s.found(0, probed(free, host), probed(exact, host))
	for _, svc := range []*v1.Service{free, exact} {
		if err := s.lb.EnsureLoadBalancerDeleted(t.Context(), "", svc); err != nil {
			t.Fatal(err)
		}
		services := v1.SchemeGroupVersion.WithResource("services")
		if err := s.api.Tracker().Delete(services, svc.Namespace, svc.Name); err != nil {
			t.Fatal(err)
		}
	}
	s.found(time.Second)
	for _, svc := range []*v1.Service{free, exact} {
		svc.UID += "-again"
		svc.Status, svc.Finalizers = v1.ServiceStatus{}, nil
		delete(svc.Annotations, v1alpha1.AnnotationAllocatedFrom)
	}
	s.expect(s.ensure(free), "1 writes, 203.0.113.5 Proxy, Allocated")
	s.expect(s.ensure(exact), "1 writes, 203.0.113.9 Proxy, Allocated")
}
