package ccm

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
	c := &Cloud{log: slog.New(slog.DiscardHandler), core: core, events: events, settings: Settings{Class: "ironlb.io/lb", OnlyClass: true, IPMode: "VIP"}}
	c.prepare(api.CoreV1(), 2)
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
	c.ledger.setPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	c.ledger.adopt(nil)
	startInformers(ctx, t, api, core, "services")
	done := make(chan error)
	go func() { done <- c.classes.Run(ctx) }()

	services := api.CoreV1().Services("default")
	ours := func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("ironlb.io/lb") }
	create(t, services, serviceFor("classless"))
	create(t, services, serviceFor("other", func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") }))
	create(t, services, serviceFor("s1", ours))
	all := await(t, services, "s1 has the address", func(all map[string]v1.Service) bool { return ip(all["s1"]) == "203.0.113.4" })
	if s1 := all["s1"]; !has(&s1, finalizer) || *s1.Status.LoadBalancer.Ingress[0].IPMode != v1.LoadBalancerIPModeVIP {
		t.Errorf("got %+v", s1)
	}
	awaitEvent(t, events, "Normal Allocated")
	create(t, services, serviceFor("s2", ours))
	awaitEvent(t, events, "Warning PoolExhausted")

	// A foreign change of the status is repaired.
	patch(t, api, "s1", map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": nil}}})
	await(t, services, "s1 has its address back", func(all map[string]v1.Service) bool { return ip(all["s1"]) == "203.0.113.4" })

	// No longer a load balancer: it is cleaned up, and the next one is served.
	patch(t, api, "s1", map[string]any{"spec": map[string]any{"type": "ClusterIP", "loadBalancerClass": nil}})
	await(t, services, "s1 is clean", func(all map[string]v1.Service) bool {
		s1 := all["s1"]
		return ip(s1) == "" && len(s1.Finalizers) == 0 && len(s1.Annotations) == 0 && len(s1.Status.Conditions) == 0
	})
	await(t, services, "s2 has the address", func(all map[string]v1.Service) bool { return ip(all["s2"]) == "203.0.113.4" })
	awaitEvent(t, events, "Normal Allocated")

	// Deleted by force, without its finalizer: what it held is free.
	create(t, services, serviceFor("s3", ours))
	awaitEvent(t, events, "Warning PoolExhausted")
	if err := services.Delete(ctx, "s2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	all = await(t, services, "s3 has the address", func(all map[string]v1.Service) bool { return ip(all["s3"]) == "203.0.113.4" })
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
	d := newDesk(t, "203.0.113.4/31")
	d.adopt()
	classes := newClassController(d.lb.registrar, nil, 1)
	svc := serviceFor("s", func(s *v1.Service) { s.Finalizers = []string{finalizer} })
	d.ensure(svc) // class-less now, with the class controller's finalizer still present
	if err := classes.sync(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	svc.Finalizers = slices.DeleteFunc(svc.Finalizers, func(f string) bool { return f == finalizer })
	d.expect(d.ensure(svc), "0 writes, 203.0.113.4 Proxy, Allocated")

	svc.Spec.LoadBalancerClass = ptr.To("ironlb.io/lb")
	if _, exists, err := d.lb.GetLoadBalancer(t.Context(), "", svc); err != nil || exists {
		t.Errorf("the service controller would clean up: %v %v", exists, err)
	}
	if err := d.lb.EnsureLoadBalancerDeleted(t.Context(), "", svc); err != nil {
		t.Fatal(err)
	}
	if got := d.ledger.standing(svc); len(got) != 1 {
		t.Errorf("holds %v", got)
	}
}

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		class, mode string
		good        bool
	}{
		{"ironlb.io/lb", "Proxy", true}, {"internal", "VIP", true}, {"", "Proxy", false}, {"a b", "Proxy", false}, {"a", "proxy", false}, {"a", "", false},
	} {
		s := Settings{Class: c.class, IPMode: c.mode}
		if err := s.Validate(); (err == nil) != c.good {
			t.Errorf("%q %q: %v", c.class, c.mode, err)
		}
	}
}

// TestOutdatedCache: a decision is compared with the last write, not with an older object.
func TestOutdatedCache(t *testing.T) {
	d := newDesk(t, "203.0.113.4/31")
	d.adopt()
	svc := serviceFor("s", annotate("ironlb.io/ips", "203.0.113.4"), func(s *v1.Service) { s.ResourceVersion = "5" })
	d.ensure(svc)
	old := svc.DeepCopy() // shows .4
	d.api.PrependReactor("patch", "services", versioned(d, "7"))
	d.ensure(old.DeepCopy()) // no write: no version
	moved := old.DeepCopy()
	annotate("ironlb.io/ips", "203.0.113.5")(moved)
	d.expect(d.ensure(moved), "1 writes, 203.0.113.5 Proxy, Allocated")
	back := old.DeepCopy() // requests .4 again, and the cache still shows it
	d.expect(d.ensure(back), "1 writes, 203.0.113.4 Proxy, Allocated")
}

// versioned makes the fake API return a version, as the real one does.
func versioned(d *desk, version string) k8stesting.ReactionFunc {
	through := k8stesting.ObjectReaction(d.api.Tracker())
	return func(a k8stesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := through(a)
		if svc, ok := obj.(*v1.Service); ok {
			svc = svc.DeepCopy()
			svc.ResourceVersion, obj = version, svc
		}
		return handled, obj, err
	}
}
