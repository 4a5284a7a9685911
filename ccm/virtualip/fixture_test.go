package virtualip

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ironlb/ironlb/ccm/allocation"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// fixture is the allocation of addresses with one pool, real code and a fake API.
type fixture struct {
	t      *testing.T
	lb     cloudprovider.LoadBalancer
	ledger *allocation.Ledger
	api    *fake.Clientset
	cache  cache.Store
	woken  []string
}

// newFixture creates one pool of the addresses.
func newFixture(t *testing.T, addresses string) *fixture {
	f := &fixture{t: t, api: fake.NewClientset()}
	scope, core := servicerecord.DefaultScope(), informers.NewSharedInformerFactory(f.api, 0)
	c := allocation.New(allocation.Config{
		Log: slog.New(slog.DiscardHandler), Events: record.NewFakeRecorder(100), Scope: &scope, Core: core, API: f.api.CoreV1(), Workers: 1,
	})
	f.lb, f.ledger, f.cache = c.LoadBalancer(), c.Ledger, core.Core().V1().Services().Informer().GetStore()
	f.ledger.Requeue = func(k pools.ServiceKey) { f.woken = append(f.woken, k.Name) }
	r, err := pools.ParseRanges(strings.Split(addresses, ","))
	if err != nil {
		t.Fatal(err)
	}
	f.ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	f.ledger.Adopt(nil)
	return f
}

// ensure calls the service like the service controller, and then the watch. It returns a summary of the effects.
func (f *fixture) ensure(svc *v1.Service) string {
	f.t.Helper()
	services := v1.SchemeGroupVersion.WithResource("services")
	if _, err := f.api.Tracker().Get(services, svc.Namespace, svc.Name); err != nil {
		if err := f.api.Tracker().Add(svc.DeepCopy()); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := f.cache.Add(svc); err != nil {
		f.t.Fatal(err)
	}
	f.api.ClearActions()
	if _, err := f.lb.EnsureLoadBalancer(context.Background(), "", svc, nil); err != cloudprovider.ImplementedElsewhere {
		f.t.Fatal(err)
	}
	what := fmt.Sprintf("%d writes", len(f.api.Actions()))
	obj, err := f.api.Tracker().Get(services, svc.Namespace, svc.Name)
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
		if c.Type != v1alpha1.ConditionAddresses {
			what += fmt.Sprintf(", %s", c.Reason)
		}
	}
	return what
}

func (f *fixture) expect(what, want string) {
	f.t.Helper()
	if what != want {
		f.t.Errorf("got %q, want %q", what, want)
	}
}
