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

// desk is the allocation of addresses with one pool, real code and a fake API.
type desk struct {
	t      *testing.T
	lb     cloudprovider.LoadBalancer
	ledger *allocation.Ledger
	api    *fake.Clientset
	cache  cache.Store
	woken  []string
}

// newDesk creates one pool of the addresses.
func newDesk(t *testing.T, addresses string) *desk {
	d := &desk{t: t, api: fake.NewClientset()}
	scope, core := servicerecord.DefaultScope(), informers.NewSharedInformerFactory(d.api, 0)
	c := allocation.New(allocation.Config{
		Log: slog.New(slog.DiscardHandler), Events: record.NewFakeRecorder(100), Scope: &scope, Core: core, API: d.api.CoreV1(), Workers: 1,
	})
	d.lb, d.ledger, d.cache = c.LoadBalancer(), c.Ledger, core.Core().V1().Services().Informer().GetStore()
	d.ledger.Wake = func(k pools.ServiceKey) { d.woken = append(d.woken, k.Name) }
	r, err := pools.ParseRanges(strings.Split(addresses, ","))
	if err != nil {
		t.Fatal(err)
	}
	d.ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	d.ledger.Adopt(nil)
	return d
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
	if err := d.cache.Add(svc); err != nil {
		d.t.Fatal(err)
	}
	d.api.ClearActions()
	if _, err := d.lb.EnsureLoadBalancer(context.Background(), "", svc, nil); err != cloudprovider.ImplementedElsewhere {
		d.t.Fatal(err)
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
		if c.Type != v1alpha1.ConditionAddresses {
			what += fmt.Sprintf(", %s", c.Reason)
		}
	}
	return what
}

func (d *desk) expect(what, want string) {
	d.t.Helper()
	if what != want {
		d.t.Errorf("got %q, want %q", what, want)
	}
}
