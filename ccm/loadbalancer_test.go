package ccm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// desk is a loadBalancer with a real ledger, pools and a fake API.
type desk struct {
	t      *testing.T
	lb     *loadBalancer
	ledger *ledger
	api    *fake.Clientset
	events *record.FakeRecorder
	woken  []string
}

// newDesk creates one pool of the addresses and adopts the Services.
func newDesk(t *testing.T, addresses string, adopt ...*v1.Service) *desk {
	d := &desk{t: t, api: fake.NewClientset(), events: record.NewFakeRecorder(100)}
	d.ledger = newLedger(slog.New(slog.DiscardHandler), defaults)
	d.ledger.wake = func(k pools.ServiceKey) { d.woken = append(d.woken, k.Name) }
	d.ledger.poolsChanged = func() {}
	d.lb = &loadBalancer{&registrar{
		log: slog.New(slog.DiscardHandler), events: d.events, settings: defaults, ledger: d.ledger, api: d.api.CoreV1(),
	}}
	r, err := pools.ParseRanges(strings.Split(addresses, ","))
	if err != nil {
		t.Fatal(err)
	}
	d.ledger.setPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	if adopt != nil {
		d.adopt(adopt...)
	}
	return d
}

func (d *desk) adopt(services ...*v1.Service) {
	var all []v1.Service
	for _, svc := range services {
		all = append(all, *svc)
	}
	d.ledger.adopt(all)
}

// ensure calls the service like the service controller, and then the watch. It returns a summary of the effects.
func (d *desk) ensure(svc *v1.Service) string {
	d.t.Helper()
	services := v1.SchemeGroupVersion.WithResource("services")
	if _, err := d.api.Tracker().Get(services, svc.Namespace, svc.Name); err != nil {
		if err := d.api.Tracker().Add(svc.DeepCopy()); err != nil {
			d.t.Fatal(err)
		}
	}
	d.api.ClearActions()
	given := svc.DeepCopy()
	if _, err := d.lb.EnsureLoadBalancer(context.Background(), "", svc, nil); err != cloudprovider.ImplementedElsewhere {
		d.t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(svc, given) {
		d.t.Errorf("it changed the Service that it was given, which belongs to the cache: %v, was %v", svc, given)
	}
	what := fmt.Sprintf("%d writes", len(d.api.Actions()))
	obj, err := d.api.Tracker().Get(services, svc.Namespace, svc.Name)
	if err != nil {
		d.t.Fatal(err)
	}
	after := obj.(*v1.Service)
	svc.Status, svc.Finalizers = after.Status, after.Finalizers
	svc.Annotations[v1alpha1.AnnotationAllocatedFrom] = after.Annotations[v1alpha1.AnnotationAllocatedFrom]
	for _, in := range svc.Status.LoadBalancer.Ingress {
		what += fmt.Sprintf(", %s %s", in.IP, *in.IPMode)
	}
	for _, c := range svc.Status.Conditions {
		if c.Type == v1alpha1.ConditionAddresses {
			if want := recordOf(d.ledger.settings.heldBy(svc)); c.Message != want {
				d.t.Errorf("the record is %q, want %q", c.Message, want)
			}
			continue
		}
		what += fmt.Sprintf(", %s", c.Reason)
	}
	return what
}

// eventTexts returns the Events since the last call.
func (d *desk) eventTexts() []string {
	var all []string
	for {
		select {
		case e := <-d.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func (d *desk) expect(what, want string) {
	d.t.Helper()
	if what != want {
		d.t.Errorf("got %q, want %q", what, want)
	}
}

func (d *desk) expectEvents(parts ...string) {
	d.t.Helper()
	got := d.eventTexts()
	if len(got) != len(parts) {
		d.t.Fatalf("got %q, want %d Events", got, len(parts))
	}
	for i, p := range parts {
		if !strings.Contains(got[i], p) {
			d.t.Errorf("got %q, want %q in it", got[i], p)
		}
	}
}

func TestPendingIsReportedOnceAndServed(t *testing.T) {
	d := newDesk(t, "203.0.113.4/32")
	d.adopt()
	s1, s2 := serviceFor("s1"), serviceFor("s2")
	d.expect(d.ensure(s1), "1 writes, 203.0.113.4 Proxy, Allocated")
	d.expect(d.ensure(s1), "0 writes, 203.0.113.4 Proxy, Allocated")
	d.expectEvents("Normal Allocated Allocated 203.0.113.4 from pool web")
	d.expect(d.ensure(s2), "1 writes, PoolExhausted")
	for range 5 {
		d.expect(d.ensure(s2), "0 writes, PoolExhausted")
	}
	d.expectEvents("Warning PoolExhausted default/s2")

	_, exists, err := d.lb.GetLoadBalancer(context.Background(), "", s2)
	if err != nil || !exists {
		t.Errorf("one that waits must exist, else its end is never reported: %v %v", exists, err)
	}
	for range 2 {
		if err := d.lb.EnsureLoadBalancerDeleted(context.Background(), "", s1); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(d.woken, []string{"s2"}) {
		t.Errorf("woken %v", d.woken)
	}
	d.expect(d.ensure(s2), "1 writes, 203.0.113.4 Proxy, Allocated")
	d.expectEvents("Normal Allocated Allocated 203.0.113.4")
	if _, exists, _ := d.lb.GetLoadBalancer(context.Background(), "", s1); exists {
		t.Error("s1 exists after its deletion")
	}
}

// TestClusterIPWhileAway: a Service that was changed to ClusterIP while no replica ran loses IronLB's record, too.
func TestClusterIPWhileAway(t *testing.T) {
	before := newDesk(t, "203.0.113.4/32")
	before.adopt()
	s1 := serviceFor("s1")
	before.ensure(s1)
	s1.Spec.Type, s1.Status.LoadBalancer = v1.ServiceTypeClusterIP, v1.LoadBalancerStatus{} // as the API server does

	d := newDesk(t, "203.0.113.4/32")
	d.adopt(s1)
	if _, err := d.api.CoreV1().Services(s1.Namespace).Create(t.Context(), s1, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, exists, err := d.lb.GetLoadBalancer(t.Context(), "", s1); err != nil || !exists {
		t.Fatalf("with a record of ours: %v %v", exists, err)
	}
	if err := d.lb.EnsureLoadBalancerDeleted(t.Context(), "", s1); err != nil {
		t.Fatal(err)
	}
	s1, err := d.api.CoreV1().Services(s1.Namespace).Get(t.Context(), s1.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := outcomeIn(s1); !o.equal(outcome{finalizer: o.finalizer}) {
		t.Errorf("left on the object: %+v", o)
	}
	if _, exists, err := d.lb.GetLoadBalancer(t.Context(), "", s1); err != nil || exists {
		t.Errorf("without one: %v %v", exists, err)
	}
}

func TestRefusedKeepsWhatItHolds(t *testing.T) {
	d := newDesk(t, "203.0.113.4/31")
	d.adopt()
	s1, s2 := serviceFor("s1"), serviceFor("s2")
	d.ensure(s1)
	d.ensure(s2)
	d.eventTexts()
	for value, reason := range map[string]string{"192.0.2.1": "AddressOutsidePools", "203.0.113.5": "AddressTaken", "x": "InvalidRequest"} {
		annotate("ironlb.io/ips", value)(s1)
		d.expect(d.ensure(s1), "1 writes, 203.0.113.4 Proxy, "+reason)
		for range 3 {
			d.expect(d.ensure(s1), "0 writes, 203.0.113.4 Proxy, "+reason)
		}
		d.expectEvents("Warning " + reason)
	}
	delete(s1.Annotations, "ironlb.io/ips")
	d.expect(d.ensure(s1), "1 writes, 203.0.113.4 Proxy, Allocated")
	d.expectEvents("Normal Allocated")
}

func TestNothingBeforeAdoption(t *testing.T) {
	holder := serviceFor("holder", shows("203.0.113.4"), given("web"))
	d := newDesk(t, "203.0.113.4/32")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.lb.EnsureLoadBalancer(ctx, "", serviceFor("new"), nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("an address was given before adoption, or: %v", err)
	}
	if err := d.lb.EnsureLoadBalancerDeleted(ctx, "", holder); !errors.Is(err, context.Canceled) {
		t.Fatalf("freed before adoption, or: %v", err)
	}
	d.adopt(serviceFor("new"), holder)
	d.expect(d.ensure(serviceFor("new")), "1 writes, PoolExhausted")
	d.eventTexts()
	d.expect(d.ensure(holder), "1 writes, 203.0.113.4 Proxy, Allocated") // the condition, which was missing
	d.expectEvents()                                                     // no change to report
}

// TestDeletedBeforeAdoption: a Service that was deleted between the list and its adoption holds nothing.
func TestDeletedBeforeAdoption(t *testing.T) {
	d := newDesk(t, "203.0.113.4/32")
	record := given("web")
	ghost := serviceFor("ghost", shows("203.0.113.4"), record, func(s *v1.Service) { s.UID = "ghost" })
	d.ledger.serviceDeleted(t.Context(), keyOf(ghost), ghost.UID)
	d.adopt(ghost)
	s := serviceFor("s")
	d.expect(d.ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
	// A Service of the same name was created after the deleted one: it keeps its address.
	d.ledger.serviceDeleted(t.Context(), keyOf(s), "older")
	d.expect(d.ensure(serviceFor("t")), "1 writes, PoolExhausted")
	d.ledger.serviceDeleted(t.Context(), keyOf(s), s.UID)
	d.expect(d.ensure(serviceFor("u")), "1 writes, 203.0.113.4 Proxy, Allocated")
}

// TestHeldTwice: of two Services that show one address, the younger one moves away.
func TestHeldTwice(t *testing.T) {
	record := given("web")
	a, b := serviceFor("a", shows("203.0.113.4"), record), serviceFor("b", shows("203.0.113.4"), record)
	d := newDesk(t, "203.0.113.4/31", b, a)
	d.expect(d.ensure(b), "1 writes, 203.0.113.5 Proxy, Allocated")
	d.expect(d.ensure(a), "1 writes, 203.0.113.4 Proxy, Allocated")
}

// TestAnotherOfTheSameName: how the API server responds to a patch with the UID of a deleted Service.
func TestAnotherOfTheSameName(t *testing.T) {
	kind := schema.GroupKind{Kind: "Service"}
	for _, c := range []struct {
		err  error
		gone bool
	}{
		{apierrors.NewInvalid(kind, "s", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "1", "field is immutable")}), true},
		{apierrors.NewInvalid(kind, "s", field.ErrorList{field.Invalid(field.NewPath("status"), "1", "no")}), false},
		{apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, "s"), true},
		{errors.New("connection refused"), false},
	} {
		if gone(c.err) != c.gone || gone(fmt.Errorf("patching: %w", c.err)) != c.gone {
			t.Errorf("%v: gone %v", c.err, !c.gone)
		}
	}
}

// TestChangeOfAddress: the Event has the old address, the new one and the reason, also if the first write failed.
func TestChangeOfAddress(t *testing.T) {
	d := newDesk(t, "203.0.113.4/31")
	d.adopt()
	s := serviceFor("s")
	d.expect(d.ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
	d.expectEvents("Normal Allocated Allocated 203.0.113.4 from pool web")
	s.Annotations = map[string]string{v1alpha1.AnnotationAddresses: "203.0.113.5"}
	fails := true
	d.api.PrependReactor("patch", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
		if fails {
			fails = false
			return true, nil, errors.New("the API server is away")
		}
		return false, nil, nil
	})
	if _, err := d.lb.EnsureLoadBalancer(t.Context(), "", s, nil); err == cloudprovider.ImplementedElsewhere {
		t.Fatal("written although the API server is away")
	}
	d.expect(d.ensure(s), "1 writes, 203.0.113.5 Proxy, Allocated")
	d.expectEvents("Normal AddressChanged The address changed from 203.0.113.4 to 203.0.113.5: " +
		"the Service requests 203.0.113.5. Allocated 203.0.113.5 from pool web")
}
