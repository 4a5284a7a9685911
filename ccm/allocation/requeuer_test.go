package allocation

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
)

// requeuerFixture is the controllers whose requeuer calls a handler that records names. The informer is not started:
// its store is filled here.
type requeuerFixture struct {
	*Controllers
	t       *testing.T
	added   []string
	updated []string
	store   cache.Store
	h       cache.ResourceEventHandler // called by the informer
}

func newRequeuerFixture(t *testing.T, services ...*v1.Service) *requeuerFixture {
	api := fake.NewClientset()
	f := &requeuerFixture{t: t, Controllers: New(Config{
		Log: slog.New(slog.DiscardHandler), Core: informers.NewSharedInformerFactory(api, 0),
		Events: record.NewFakeRecorder(100), Scope: defaults, API: api.CoreV1(), Workers: 1,
	})}
	f.pool("203.0.113.4/32")
	informer := f.services.Informer()
	f.store = informer.GetStore()
	wrapped := &requeuingInformer{SharedIndexInformer: capturing{informer, &f.h}, requeuer: f.requeuer}
	_, err := wrapped.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.added = append(f.added, o.(*v1.Service).Name) },
		UpdateFunc: func(_, o any) { f.updated = append(f.updated, o.(*v1.Service).Name) },
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, svc := range services {
		svc.UID = types.UID(svc.Name)
		f.put(svc)
		f.h.OnAdd(svc, true)
		if err := api.Tracker().Add(svc); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// capturing keeps the handler instead of calling it.
type capturing struct {
	cache.SharedIndexInformer
	h *cache.ResourceEventHandler
}

func (c capturing) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	*c.h = h
	return nil, nil
}

func (f *requeuerFixture) put(svc *v1.Service) {
	if err := f.store.Add(svc); err != nil {
		f.t.Fatal(err)
	}
}

func (f *requeuerFixture) pool(entries ...string) {
	r, err := pools.ParseRanges(entries)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
}

// start adopts the stored Services and passes on what was held back.
func (f *requeuerFixture) start() {
	var all []v1.Service
	for _, o := range f.store.List() {
		all = append(all, *o.(*v1.Service))
	}
	f.Ledger.Adopt(all)
	f.requeuer.Start(context.Background())
}

// expect compares the calls since the last time.
func (f *requeuerFixture) expect(what string, added, updated []string) {
	f.t.Helper()
	if !slices.Equal(f.added, added) || !slices.Equal(f.updated, updated) {
		f.t.Errorf("%s: added %v, updated %v; want %v and %v", what, f.added, f.updated, added, updated)
	}
	f.added, f.updated = nil, nil
}

// change delivers a change through the informer.
func (f *requeuerFixture) change(svc *v1.Service, edit func(*v1.Service)) *v1.Service {
	after := svc.DeepCopy()
	edit(after)
	f.put(after)
	f.h.OnUpdate(svc, after)
	return after
}

// TestRevisit: a Service that shows another controller's address is woken when a pool lists that address, or the
// address is removed, and not before. Other Services are not woken by it.
func TestRevisit(t *testing.T) {
	theirs := ccmtest.ServiceFor("theirs", ccmtest.Shows("198.51.100.9"))
	gone := ccmtest.ServiceFor("gone", ccmtest.Shows("198.51.100.10"))
	f := newRequeuerFixture(t, theirs, gone,
		ccmtest.ServiceFor("ours", ccmtest.Shows("203.0.113.4"), ccmtest.Given("web")),
		ccmtest.ServiceFor("classed", ccmtest.Shows("198.51.100.9"), func(s *v1.Service) { class := "example.com/lb"; s.Spec.LoadBalancerClass = &class }),
		ccmtest.ServiceFor("plain", func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeClusterIP }))
	f.start()
	f.added = nil // ours has no condition yet; the service controller ignores the foreign ones
	f.requeuer.Revisit()
	f.expect("no pool has it", nil, nil)
	f.pool("203.0.113.4/32", "198.51.100.9/32")
	f.requeuer.Revisit()
	f.expect("a pool has it", []string{"theirs"}, nil)
	if err := f.registrar.serve(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	got, err := f.registrar.api.Services("default").Get(t.Context(), "theirs", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ccmtest.IP(*got) != "198.51.100.9" || got.Annotations["ironlb.io/allocated-from"] != "web" {
		t.Errorf("taken over with another address: %+v", got.Status)
	}
	f.put(got)
	f.requeuer.Revisit()
	f.expect("it is ours", nil, nil)

	f.change(gone, func(s *v1.Service) { s.Status.LoadBalancer = v1.LoadBalancerStatus{} })
	f.expect("its address was removed", []string{"gone"}, []string{"gone"})
}

// TestHeldBackUntilAdopted: after a start nothing passes before recorded addresses are adopted. Then the Services with
// work left pass, the oldest first.
func TestHeldBackUntilAdopted(t *testing.T) {
	at := func(sec int64) func(*v1.Service) {
		return func(s *v1.Service) { s.CreationTimestamp = metav1.Unix(sec, 0) }
	}
	old := ccmtest.ServiceFor("old", at(1))
	f := newRequeuerFixture(t, ccmtest.ServiceFor("younger", at(2)), old,
		ccmtest.ServiceFor("settled", at(0), ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"), func(s *v1.Service) {
			s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
			s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: "ironlb.io/Allocated", Status: "True", Reason: "Allocated", Message: "Allocated 203.0.113.4 from pool web"})
		}),
		ccmtest.ServiceFor("theirs", at(0), ccmtest.Shows("198.51.100.9")))
	old = f.change(old, func(s *v1.Service) { s.Labels = map[string]string{"a": "b"} })
	f.expect("before", nil, nil)
	f.start()
	f.expect("after", []string{"old", "younger"}, nil)
	f.h.OnAdd(ccmtest.ServiceFor("new"), false)
	f.expect("later", []string{"new"}, nil)
	f.h.OnDelete(old)
	f.expect("a deletion", nil, nil)
}

// TestWhatComesThrough: changes that the allocator uses pass as an addition, too; IronLB's own echo does not appear as
// a change.
func TestWhatComesThrough(t *testing.T) {
	s := ccmtest.ServiceFor("s")
	f := newRequeuerFixture(t, s)
	f.start()
	f.expect("the first time", []string{"s"}, nil)
	for name, edit := range map[string]func(*v1.Service){
		"a label":        func(s *v1.Service) { s.Labels = map[string]string{"a": "b"} },
		"the policy":     func(s *v1.Service) { p := v1.IPFamilyPolicyPreferDualStack; s.Spec.IPFamilyPolicy = &p },
		"the selector":   func(s *v1.Service) { s.Spec.Selector = map[string]string{"app": "web"} },
		"removed labels": func(s *v1.Service) { s.Labels = nil },
	} {
		f.change(s, edit)
		if name == "removed labels" {
			f.expect(name, nil, []string{"s"})
			continue
		}
		f.expect(name, []string{"s"}, []string{"s"})
	}
	if err := f.registrar.serve(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	after := s.DeepCopy()
	ccmtest.Annotate("ironlb.io/allocated-from", "web")(after)
	if got := f.requeuer.withoutEcho(s, after); !annotationsEqual(got, after) {
		t.Errorf("our own annotation comes through: %v", got.Annotations)
	}
	ccmtest.Annotate("ironlb.io/allocated-from", "other")(after)
	if got := f.requeuer.withoutEcho(s, after); annotationsEqual(got, after) {
		t.Error("a foreign change of the annotation is not passed on")
	}
}

func annotationsEqual(a, b *v1.Service) bool {
	return len(a.Annotations) == len(b.Annotations) && a.Annotations["ironlb.io/allocated-from"] == b.Annotations["ironlb.io/allocated-from"]
}
