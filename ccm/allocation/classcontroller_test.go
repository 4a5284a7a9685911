package allocation

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// TestClassController runs the controller on informers: Services of IronLB's class are served and cleaned up, others
// are not touched.
func TestClassController(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api := fake.NewClientset()
	core := informers.NewSharedInformerFactory(api, 0)
	events := record.NewFakeRecorder(100)
	c := New(Config{
		Log: slog.New(slog.DiscardHandler), Core: core, Events: events, Scope: &servicerecord.Scope{Class: "ironlb.io/lb", OnlyClass: true, IPMode: "VIP"},
		API: api.CoreV1(), Workers: 2,
	})
	informer := core.Core().V1().Services().Informer()
	for _, h := range []func() error{
		func() error { _, err := informer.AddEventHandler(c.classes.handler()); return err },
		func() error { _, err := informer.AddEventHandler(c.divergence.handler(ctx)); return err },
	} {
		if err := h(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := pools.ParseRanges([]string{"203.0.113.4"})
	if err != nil {
		t.Fatal(err)
	}
	c.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	c.Ledger.Adopt(nil)
	startInformers(ctx, t, api, core, "services")
	done := make(chan error)
	go func() { done <- c.classes.Run(ctx) }()

	services := api.CoreV1().Services("default")
	ours := func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("ironlb.io/lb") }
	ccmtest.Create(t, services, ccmtest.ServiceFor("classless"))
	ccmtest.Create(t, services, ccmtest.ServiceFor("other", func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") }))
	ccmtest.Create(t, services, ccmtest.ServiceFor("s1", ours))
	all := await(t, services, "s1 has the address", func(all map[string]v1.Service) bool { return ccmtest.IP(all["s1"]) == "203.0.113.4" })
	if s1 := all["s1"]; !servicerecord.HasFinalizer(&s1, servicerecord.Finalizer) || *s1.Status.LoadBalancer.Ingress[0].IPMode != v1.LoadBalancerIPModeVIP {
		t.Errorf("got %+v", s1)
	}
	awaitEvent(t, events, "Normal Allocated")
	ccmtest.Create(t, services, ccmtest.ServiceFor("s2", ours))
	awaitEvent(t, events, "Warning PoolExhausted")

	// A foreign change of the status is repaired.
	patch(t, api, "s1", map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": nil}}})
	await(t, services, "s1 has its address back", func(all map[string]v1.Service) bool { return ccmtest.IP(all["s1"]) == "203.0.113.4" })

	// No longer a load balancer: it is cleaned up, and the next one is served.
	patch(t, api, "s1", map[string]any{"spec": map[string]any{"type": "ClusterIP", "loadBalancerClass": nil}})
	await(t, services, "s1 is clean", func(all map[string]v1.Service) bool {
		s1 := all["s1"]
		return ccmtest.IP(s1) == "" && len(s1.Finalizers) == 0 && len(s1.Annotations) == 0 && len(s1.Status.Conditions) == 0
	})
	await(t, services, "s2 has the address", func(all map[string]v1.Service) bool { return ccmtest.IP(all["s2"]) == "203.0.113.4" })
	awaitEvent(t, events, "Normal Allocated")

	// Deleted by force, without its finalizer: what it held is free.
	ccmtest.Create(t, services, ccmtest.ServiceFor("s3", ours))
	awaitEvent(t, events, "Warning PoolExhausted")
	if err := services.Delete(ctx, "s2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	all = await(t, services, "s3 has the address", func(all map[string]v1.Service) bool { return ccmtest.IP(all["s3"]) == "203.0.113.4" })
	for _, name := range []string{"classless", "other"} {
		if s := all[name]; len(s.Finalizers)+len(s.Annotations)+len(s.Status.Conditions)+len(s.Status.LoadBalancer.Ingress) > 0 {
			t.Errorf("%s was touched: %+v", name, s)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func patch(t *testing.T, api *fake.Clientset, name string, change map[string]any) {
	t.Helper()
	data, err := json.Marshal(change)
	if err == nil {
		_, err = api.CoreV1().Services("default").Patch(t.Context(), name, types.MergePatchType, data, metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTwoControllersOneService: a Service that gets or loses its class keeps what it holds. Each controller removes
// only its own finalizer.
func TestTwoControllersOneService(t *testing.T) {
	f := newFixture(t, "203.0.113.4/31")
	f.Adopt()
	classes := newClassController(f.Lb.Registrar, nil, 1)
	svc := ccmtest.ServiceFor("s", func(s *v1.Service) { s.Finalizers = []string{servicerecord.Finalizer} })
	f.Ensure(svc) // class-less now, with the class controller's finalizer still present
	if err := classes.sync(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	svc.Finalizers = slices.DeleteFunc(svc.Finalizers, func(name string) bool { return name == servicerecord.Finalizer })
	f.Expect(f.Ensure(svc), "0 writes, 203.0.113.4 Proxy, Allocated")

	svc.Spec.LoadBalancerClass = ptr.To("ironlb.io/lb")
	if _, exists, err := f.Lb.GetLoadBalancer(t.Context(), "", svc); err != nil || exists {
		t.Errorf("the service controller would clean up: %v %v", exists, err)
	}
	if err := f.Lb.EnsureLoadBalancerDeleted(t.Context(), "", svc); err != nil {
		t.Fatal(err)
	}
	if got := f.Ledger.Standing(svc); len(got) != 1 {
		t.Errorf("holds %v", got)
	}
}

// TestOutdatedCache: a decision is compared with the last write, not with an older object.
func TestOutdatedCache(t *testing.T) {
	f := newFixture(t, "203.0.113.4/31")
	f.Adopt()
	svc := ccmtest.ServiceFor("s", ccmtest.Annotate("ironlb.io/ips", "203.0.113.4"), func(s *v1.Service) { s.ResourceVersion = "5" })
	f.Ensure(svc)
	old := svc.DeepCopy() // shows .4
	f.Api.PrependReactor("patch", "services", versioned(f, "7"))
	f.Ensure(old.DeepCopy()) // no write: no version
	moved := old.DeepCopy()
	ccmtest.Annotate("ironlb.io/ips", "203.0.113.5")(moved)
	f.Expect(f.Ensure(moved), "1 writes, 203.0.113.5 Proxy, Allocated")
	back := old.DeepCopy() // requests .4 again, and the cache still shows it
	f.Expect(f.Ensure(back), "1 writes, 203.0.113.4 Proxy, Allocated")
}

// versioned makes the fake API return a version, as the real one does.
func versioned(f *fixture, version string) k8stesting.ReactionFunc {
	through := k8stesting.ObjectReaction(f.Api.Tracker())
	return func(a k8stesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := through(a)
		if svc, ok := obj.(*v1.Service); ok {
			svc = svc.DeepCopy()
			svc.ResourceVersion, obj = version, svc
		}
		return handled, obj, err
	}
}
