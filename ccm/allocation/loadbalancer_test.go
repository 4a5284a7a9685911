package allocation

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

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// defaults are the settings without any flag.
var defaults = func() *servicerecord.Scope { s := servicerecord.DefaultScope(); return &s }()

// fixture is a loadBalancer with a real ledger, pools and a fake API.
type fixture struct {
	t      *testing.T
	Lb     *LoadBalancer
	Ledger *Ledger
	Api    *fake.Clientset
	events *record.FakeRecorder
	Woken  []string
}

// newFixture creates one pool of the addresses and adopts the Services.
func newFixture(t *testing.T, addresses string, adopt ...*v1.Service) *fixture {
	f := &fixture{t: t, Api: fake.NewClientset(), events: record.NewFakeRecorder(100)}
	f.Ledger = NewLedger(slog.New(slog.DiscardHandler), defaults)
	f.Ledger.Requeue = func(k pools.ServiceKey) { f.Woken = append(f.Woken, k.Name) }
	f.Ledger.PoolsChanged = func() {}
	f.Lb = &LoadBalancer{&Registrar{
		Log: slog.New(slog.DiscardHandler), events: f.events, settings: defaults, ledger: f.Ledger, api: f.Api.CoreV1(),
	}}
	r, err := pools.ParseRanges(strings.Split(addresses, ","))
	if err != nil {
		t.Fatal(err)
	}
	f.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	if adopt != nil {
		f.Adopt(adopt...)
	}
	return f
}

func (f *fixture) Adopt(services ...*v1.Service) {
	var all []v1.Service
	for _, svc := range services {
		all = append(all, *svc)
	}
	f.Ledger.Adopt(all)
}

// Ensure calls the service like the service controller, and then the watch. It returns a summary of the effects.
func (f *fixture) Ensure(svc *v1.Service) string {
	f.t.Helper()
	services := v1.SchemeGroupVersion.WithResource("services")
	if _, err := f.Api.Tracker().Get(services, svc.Namespace, svc.Name); err != nil {
		if err := f.Api.Tracker().Add(svc.DeepCopy()); err != nil {
			f.t.Fatal(err)
		}
	}
	f.Api.ClearActions()
	given := svc.DeepCopy()
	if _, err := f.Lb.EnsureLoadBalancer(context.Background(), "", svc, nil); err != cloudprovider.ImplementedElsewhere {
		f.t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(svc, given) {
		f.t.Errorf("it changed the Service that it was given, which belongs to the cache: %v, was %v", svc, given)
	}
	what := fmt.Sprintf("%d writes", len(f.Api.Actions()))
	obj, err := f.Api.Tracker().Get(services, svc.Namespace, svc.Name)
	if err != nil {
		f.t.Fatal(err)
	}
	after := obj.(*v1.Service)
	svc.Status, svc.Finalizers = after.Status, after.Finalizers
	svc.Annotations[v1alpha1.AnnotationAllocatedFrom] = after.Annotations[v1alpha1.AnnotationAllocatedFrom]
	for _, in := range svc.Status.LoadBalancer.Ingress {
		what += fmt.Sprintf(", %s %s", in.IP, *in.IPMode)
	}
	for _, c := range svc.Status.Conditions {
		if c.Type == v1alpha1.ConditionAddresses {
			if want := servicerecord.RecordOf(f.Ledger.settings.HeldBy(svc)); c.Message != want {
				f.t.Errorf("the record is %q, want %q", c.Message, want)
			}
			continue
		}
		what += fmt.Sprintf(", %s", c.Reason)
	}
	return what
}

// eventTexts returns the Events since the last call.
func (f *fixture) eventTexts() []string {
	var all []string
	for {
		select {
		case e := <-f.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func (f *fixture) Expect(what, want string) {
	f.t.Helper()
	if what != want {
		f.t.Errorf("got %q, want %q", what, want)
	}
}

func (f *fixture) expectEvents(parts ...string) {
	f.t.Helper()
	got := f.eventTexts()
	if len(got) != len(parts) {
		f.t.Fatalf("got %q, want %d Events", got, len(parts))
	}
	for i, p := range parts {
		if !strings.Contains(got[i], p) {
			f.t.Errorf("got %q, want %q in it", got[i], p)
		}
	}
}

func TestPendingIsReportedOnceAndServed(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32")
	f.Adopt()
	s1, s2 := ccmtest.ServiceFor("s1"), ccmtest.ServiceFor("s2")
	f.Expect(f.Ensure(s1), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.Expect(f.Ensure(s1), "0 writes, 203.0.113.4 Proxy, Allocated")
	f.expectEvents("Normal Allocated Allocated 203.0.113.4 from pool web")
	f.Expect(f.Ensure(s2), "1 writes, PoolExhausted")
	for range 5 {
		f.Expect(f.Ensure(s2), "0 writes, PoolExhausted")
	}
	f.expectEvents("Warning PoolExhausted default/s2")

	_, exists, err := f.Lb.GetLoadBalancer(context.Background(), "", s2)
	if err != nil || !exists {
		t.Errorf("one that waits must exist, else its end is never reported: %v %v", exists, err)
	}
	for range 2 {
		if err := f.Lb.EnsureLoadBalancerDeleted(context.Background(), "", s1); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(f.Woken, []string{"s2"}) {
		t.Errorf("woken %v", f.Woken)
	}
	f.Expect(f.Ensure(s2), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.expectEvents("Normal Allocated Allocated 203.0.113.4")
	if _, exists, _ := f.Lb.GetLoadBalancer(context.Background(), "", s1); exists {
		t.Error("s1 exists after its deletion")
	}
}

// TestClusterIPWhileAway: a Service that was changed to ClusterIP while no replica ran loses IronLB's record, too.
func TestClusterIPWhileAway(t *testing.T) {
	before := newFixture(t, "203.0.113.4/32")
	before.Adopt()
	s1 := ccmtest.ServiceFor("s1")
	before.Ensure(s1)
	s1.Spec.Type, s1.Status.LoadBalancer = v1.ServiceTypeClusterIP, v1.LoadBalancerStatus{} // as the API server does

	f := newFixture(t, "203.0.113.4/32")
	f.Adopt(s1)
	if _, err := f.Api.CoreV1().Services(s1.Namespace).Create(t.Context(), s1, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, exists, err := f.Lb.GetLoadBalancer(t.Context(), "", s1); err != nil || !exists {
		t.Fatalf("with a record of ours: %v %v", exists, err)
	}
	if err := f.Lb.EnsureLoadBalancerDeleted(t.Context(), "", s1); err != nil {
		t.Fatal(err)
	}
	s1, err := f.Api.CoreV1().Services(s1.Namespace).Get(t.Context(), s1.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := servicerecord.OutcomeIn(s1); !o.Equal(servicerecord.Outcome{Finalizer: o.Finalizer}) {
		t.Errorf("left on the object: %+v", o)
	}
	if _, exists, err := f.Lb.GetLoadBalancer(t.Context(), "", s1); err != nil || exists {
		t.Errorf("without one: %v %v", exists, err)
	}
}

func TestRefusedKeepsWhatItHolds(t *testing.T) {
	f := newFixture(t, "203.0.113.4/31")
	f.Adopt()
	s1, s2 := ccmtest.ServiceFor("s1"), ccmtest.ServiceFor("s2")
	f.Ensure(s1)
	f.Ensure(s2)
	f.eventTexts()
	for value, reason := range map[string]string{"192.0.2.1": "AddressOutsidePools", "203.0.113.5": "AddressTaken", "x": "InvalidRequest"} {
		ccmtest.Annotate("ironlb.io/ips", value)(s1)
		f.Expect(f.Ensure(s1), "1 writes, 203.0.113.4 Proxy, "+reason)
		for range 3 {
			f.Expect(f.Ensure(s1), "0 writes, 203.0.113.4 Proxy, "+reason)
		}
		f.expectEvents("Warning " + reason)
	}
	delete(s1.Annotations, "ironlb.io/ips")
	f.Expect(f.Ensure(s1), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.expectEvents("Normal Allocated")
}

func TestNothingBeforeAdoption(t *testing.T) {
	holder := ccmtest.ServiceFor("holder", ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"))
	f := newFixture(t, "203.0.113.4/32")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.Lb.EnsureLoadBalancer(ctx, "", ccmtest.ServiceFor("new"), nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("an address was given before adoption, or: %v", err)
	}
	if err := f.Lb.EnsureLoadBalancerDeleted(ctx, "", holder); !errors.Is(err, context.Canceled) {
		t.Fatalf("freed before adoption, or: %v", err)
	}
	f.Adopt(ccmtest.ServiceFor("new"), holder)
	f.Expect(f.Ensure(ccmtest.ServiceFor("new")), "1 writes, PoolExhausted")
	f.eventTexts()
	f.Expect(f.Ensure(holder), "1 writes, 203.0.113.4 Proxy, Allocated") // the condition, which was missing
	f.expectEvents()                                                     // no change to report
}

// TestDeletedBeforeAdoption: a Service that was deleted between the list and its adoption holds nothing.
func TestDeletedBeforeAdoption(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32")
	record := ccmtest.Given("web")
	ghost := ccmtest.ServiceFor("ghost", ccmtest.Shows("203.0.113.4"), record, func(s *v1.Service) { s.UID = "ghost" })
	f.Ledger.serviceDeleted(t.Context(), servicerecord.KeyOf(ghost), ghost.UID)
	f.Adopt(ghost)
	s := ccmtest.ServiceFor("s")
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
	// A Service of the same name was created after the deleted one: it keeps its address.
	f.Ledger.serviceDeleted(t.Context(), servicerecord.KeyOf(s), "older")
	waits := ccmtest.ServiceFor("t")
	f.Expect(f.Ensure(waits), "1 writes, PoolExhausted")
	f.Ledger.serviceDeleted(t.Context(), servicerecord.KeyOf(s), s.UID)
	f.Expect(f.Ensure(waits), "1 writes, 203.0.113.4 Proxy, Allocated")
}

// TestHeldTwice: of two Services that show one address, the younger one moves away.
func TestHeldTwice(t *testing.T) {
	record := ccmtest.Given("web")
	a, b := ccmtest.ServiceFor("a", ccmtest.Shows("203.0.113.4"), record), ccmtest.ServiceFor("b", ccmtest.Shows("203.0.113.4"), record)
	f := newFixture(t, "203.0.113.4/31", b, a)
	f.Expect(f.Ensure(b), "1 writes, 203.0.113.5 Proxy, Allocated")
	f.Expect(f.Ensure(a), "1 writes, 203.0.113.4 Proxy, Allocated")
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
		if servicerecord.Gone(c.err) != c.gone || servicerecord.Gone(fmt.Errorf("patching: %w", c.err)) != c.gone {
			t.Errorf("%v: gone %v", c.err, !c.gone)
		}
	}
}

// TestChangeOfAddress: the Event has the old address, the new one and the reason, also if the first write failed.
func TestChangeOfAddress(t *testing.T) {
	f := newFixture(t, "203.0.113.4/31")
	f.Adopt()
	s := ccmtest.ServiceFor("s")
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
	f.expectEvents("Normal Allocated Allocated 203.0.113.4 from pool web")
	s.Annotations = map[string]string{v1alpha1.AnnotationAddresses: "203.0.113.5"}
	fails := true
	f.Api.PrependReactor("patch", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
		if fails {
			fails = false
			return true, nil, errors.New("the API server is away")
		}
		return false, nil, nil
	})
	if _, err := f.Lb.EnsureLoadBalancer(t.Context(), "", s, nil); err == cloudprovider.ImplementedElsewhere {
		t.Fatal("written although the API server is away")
	}
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.5 Proxy, Allocated")
	f.expectEvents("Normal AddressChanged The address changed from 203.0.113.4 to 203.0.113.5: " +
		"the Service requests 203.0.113.5. Allocated 203.0.113.5 from pool web")
}
