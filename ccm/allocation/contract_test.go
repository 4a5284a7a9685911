package allocation

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// nodeWatch is a Cloud that reports the nodes of each UpdateLoadBalancer, after it.
type nodeWatch struct {
	balancerCloud
	nodes chan string
}

func (w nodeWatch) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	lb, ok := w.balancerCloud.LoadBalancer()
	return watchedBalancer{lb, w.nodes}, ok
}

type watchedBalancer struct {
	cloudprovider.LoadBalancer
	nodes chan string
}

func (w watchedBalancer) UpdateLoadBalancer(ctx context.Context, name string, svc *v1.Service, nodes []*v1.Node) error {
	err := w.LoadBalancer.UpdateLoadBalancer(ctx, name, svc, nodes)
	var names []string
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	w.nodes <- strings.Join(names, " ")
	return err
}

// TestNodesComeAndGo: the service controller's own calls for added and removed nodes, down to none, change no address
// and cause no write, log line or Event.
func TestNodesComeAndGo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := make(chan string, 100)
	observe := func(c balancerCloud) cloudprovider.Interface { return nodeWatch{c, calls} }
	api, events := startObserved(ctx, t, 1, observe, ccmtest.Node("n1"))
	services, nodes := api.CoreV1().Services("default"), api.CoreV1().Nodes()
	ccmtest.Create(t, services, ccmtest.ServiceFor("s"))
	awaitEvent(t, events, "Normal Allocated")
	before, err := services.Get(ctx, "s", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	api.ClearActions()
	add := func(name string) error {
		_, err := nodes.Create(ctx, ccmtest.Node(name), metav1.CreateOptions{})
		return err
	}
	remove := func(name string) error { return nodes.Delete(ctx, name, metav1.DeleteOptions{}) }
	for _, step := range []struct {
		do   func(string) error
		node string
		want string
	}{{add, "n2", "n1 n2"}, {remove, "n1", "n2"}, {remove, "n2", ""}, {add, "n1", "n1"}} {
		if err := step.do(step.node); err != nil {
			t.Fatal(err)
		}
		for limit := time.After(20 * time.Second); ; {
			select {
			case got := <-calls:
				if got != step.want {
					continue // of earlier nodes
				}
			case <-limit:
				t.Fatalf("not called with nodes %q within 20 s", step.want)
			}
			break
		}
	}
	after, err := services.Get(ctx, "s", metav1.GetOptions{})
	if err != nil || !equality.Semantic.DeepEqual(after, before) {
		t.Errorf("the Service is now %v, was %v (%v)", after, before, err)
	}
	ccmtest.Create(t, services, ccmtest.ServiceFor("s2"))
	awaitEvent(t, events, "Warning PoolExhausted") // the address is still held
	wrote := slices.DeleteFunc(writes(api), func(w string) bool { return strings.HasPrefix(w, "create nodes ") })
	if want := []string{"create services s2", "patch services/status s2"}; !slices.Equal(wrote, want) {
		t.Errorf("wrote %q, want %q", wrote, want)
	}
	if len(events.Events) > 0 {
		t.Errorf("unexpected Event: %q", <-events.Events)
	}
}

// TestRecreated: a Service is recreated under its name. The end of the old one frees what it held, and late calls for
// it do not affect the new one.
func TestRecreated(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32", ccmtest.ServiceFor("unrelated"))
	old := ccmtest.ServiceFor("s")
	f.Expect(f.Ensure(old), "1 writes, 203.0.113.4 Proxy, Allocated")
	if err := f.Api.Tracker().Delete(servicesResource, "default", "s"); err != nil {
		t.Fatal(err)
	}
	recreated := ccmtest.ServiceFor("s", func(s *v1.Service) { s.UID = "2" })
	if _, exists, err := f.Lb.GetLoadBalancer(t.Context(), "", old); err != nil || !exists {
		t.Errorf("the old one: %v, %v", exists, err)
	}
	if _, exists, err := f.Lb.GetLoadBalancer(t.Context(), "", recreated); err != nil || exists {
		t.Errorf("the new one, before its decision: %v, %v", exists, err)
	}
	f.Expect(f.Ensure(recreated), "1 writes, 203.0.113.4 Proxy, Allocated")
	if err := f.Lb.EnsureLoadBalancerDeleted(t.Context(), "", old); err != nil {
		t.Fatal(err)
	}
	f.Expect(f.Ensure(ccmtest.ServiceFor("t", func(s *v1.Service) { s.UID = "3" })), "1 writes, PoolExhausted")
}

// TestFailingServiceBacksOff: a Service that the API server refuses is retried after 5, 10, 20 s, each time with a
// Warning, and delays no other.
func TestFailingServiceBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var tries []time.Duration
		served := make(chan string, 10)
		f := newCrashFixture(t, -1, false)
		f.api.PrependReactor("patch", "services", func(a k8stesting.Action) (bool, runtime.Object, error) {
			name := a.(k8stesting.PatchAction).GetName()
			if name != "bad" {
				defer func() { served <- name }()
				return false, nil, nil
			}
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Since(start))
			if len(tries) <= 3 {
				return true, nil, errors.New("refused")
			}
			defer func() { served <- name }()
			return false, nil, nil
		})
		p := f.start()
		store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		p.classes.services, p.classes.workers = corelisters.NewServiceLister(store), 1
		for _, name := range []string{"bad", "good"} {
			f.add(name, "ironlb.io/lb")
			if err := store.Add(f.get(name)); err != nil {
				t.Fatal(err)
			}
			p.classes.enqueue(f.get(name))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.classes.Run(ctx) }()
		if name := <-served; name != "good" || time.Since(start) >= classFirstRetry {
			t.Errorf("%s was served first, after %s", name, time.Since(start))
		}
		if name := <-served; name != "bad" {
			t.Errorf("%s was served", name)
		}
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := []time.Duration{0, 5 * time.Second, 15 * time.Second, 35 * time.Second}; !slices.Equal(tries, want) {
			t.Errorf("tried at %v, want %v", tries, want)
		}
		var warned int
		for events := p.classes.registrar.events.(*record.FakeRecorder).Events; len(events) > 0; {
			if strings.HasPrefix(<-events, "Warning SyncLoadBalancerFailed") {
				warned++
			}
		}
		if warned != 3 {
			t.Errorf("%d Warnings, want one for each failure", warned)
		}
	})
}

// TestWokenByEveryRoute: a waiting Service is re-evaluated and served when what it waits for becomes available, in
// every way.
func TestWokenByEveryRoute(t *testing.T) {
	ranges := func(entries ...string) []pools.Range {
		r, err := pools.ParseRanges(entries)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	web := pools.Pool{Name: "web", Ranges: ranges("203.0.113.4/31"), AutoAssign: true}
	port := func(n int32) func(*v1.Service) { return func(s *v1.Service) { s.Spec.Ports[0].Port = n } }
	ask := func(ip, key string) func(*v1.Service) {
		return ccmtest.Annotate("ironlb.io/ips", ip, "ironlb.io/sharing-key", key)
	}
	team := pools.Pool{Name: "team", Ranges: ranges("203.0.113.8/32"), AutoAssign: true, Allocation: pools.Allocation{
		Set: true, NamespaceSelectors: []pools.Selector{{{Key: "team", Operator: pools.In, Values: []string{"a"}}}},
	}}
	for name, c := range map[string]struct {
		holder, waiter func(*v1.Service)
		reason         string
		act            func(f *fixture, holder *v1.Service)
		gets           string
	}{
		"deleted": {ask("203.0.113.4", ""), ask("203.0.113.4", ""), "AddressTaken", func(f *fixture, s *v1.Service) {
			ccmtest.Deleted(s)
			if err := f.Lb.EnsureLoadBalancerDeleted(t.Context(), "", s); err != nil {
				t.Fatal(err)
			}
		}, "203.0.113.4"},
		"deleted without finalizers": {ask("203.0.113.4", ""), ask("203.0.113.4", ""), "AddressTaken", func(f *fixture, s *v1.Service) {
			f.Ledger.serviceDeleted(t.Context(), servicerecord.KeyOf(s), s.UID)
		}, "203.0.113.4"},
		"made ClusterIP": {ask("203.0.113.4", ""), ask("203.0.113.4", ""), "AddressTaken", func(f *fixture, s *v1.Service) {
			ccmtest.Plain(s)
			if err := f.Lb.EnsureLoadBalancerDeleted(t.Context(), "", s); err != nil {
				t.Fatal(err)
			}
		}, "203.0.113.4"},
		"moved": {ask("203.0.113.4", ""), ask("203.0.113.4", ""), "AddressTaken", func(f *fixture, s *v1.Service) {
			ask("203.0.113.5", "")(s)
			f.Ensure(s)
		}, "203.0.113.4"},
		"changed its key": {ask("203.0.113.4", "k"), func(s *v1.Service) { ask("203.0.113.4", "l")(s); port(81)(s) }, "SharingRefused", func(f *fixture, s *v1.Service) {
			ask("203.0.113.4", "l")(s)
			f.Ensure(s)
		}, "203.0.113.4"},
		"changed its port": {ask("203.0.113.4", "k"), ask("203.0.113.4", "k"), "SharingRefused", func(f *fixture, s *v1.Service) {
			port(81)(s)
			f.Ensure(s)
		}, "203.0.113.4"},
		"a pool is added": {ask("203.0.113.4", ""), ask("203.0.113.6", ""), "AddressOutsidePools", func(f *fixture, _ *v1.Service) {
			f.Ledger.SetPools([]pools.Pool{web, {Name: "more", Ranges: ranges("203.0.113.6/32"), AutoAssign: true}})
		}, "203.0.113.6"},
		"a pool is renamed to the requested one": {ask("203.0.113.4", ""), ccmtest.Annotate("ironlb.io/ip-pool", "next"), "PoolNotFound", func(f *fixture, _ *v1.Service) {
			next := web
			next.Name = "next"
			f.Ledger.SetPools([]pools.Pool{next})
		}, "203.0.113.5"},
		"its namespace is labelled": {ask("203.0.113.4", ""), ccmtest.Annotate("ironlb.io/ip-pool", "team"), "PoolNotAdmitting", func(f *fixture, _ *v1.Service) {
			f.Ledger.setNamespace(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "a"}}})
		}, "203.0.113.8"},
	} {
		f := newFixture(t, "203.0.113.4/31")
		f.Ledger.SetPools([]pools.Pool{web, team})
		f.Adopt()
		holder := ccmtest.ServiceFor("holder", c.holder, func(s *v1.Service) { s.UID = "holder" })
		waiter := ccmtest.ServiceFor("waiter", c.waiter, func(s *v1.Service) { s.UID = "waiter" })
		f.Expect(f.Ensure(holder), "1 writes, 203.0.113.4 Proxy, Allocated")
		f.Expect(f.Ensure(waiter), "1 writes, "+c.reason)
		f.Woken = nil
		c.act(f, holder)
		if !slices.Contains(f.Woken, "waiter") {
			t.Errorf("%s: woken %v", name, f.Woken)
		}
		f.Expect(f.Ensure(waiter), "1 writes, "+c.gets+" Proxy, Allocated")
	}
}

// TestResync: the informer's resync retries only the Services that lack something.
func TestResync(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32", ccmtest.ServiceFor("unrelated"))
	var woken []string
	h := newDivergence(f.Lb.Registrar, func(k pools.ServiceKey) { woken = append(woken, k.Name) }).handler(t.Context())
	s, waits, theirs := ccmtest.ServiceFor("s"), ccmtest.ServiceFor("waits", func(s *v1.Service) { s.UID = "2" }), ccmtest.ServiceFor("theirs", ccmtest.Shows(ccmtest.Elsewhere))
	f.Ensure(s)
	f.Ensure(waits)
	for _, svc := range []*v1.Service{s, waits, theirs, ccmtest.ServiceFor("plain", ccmtest.Plain), ccmtest.ServiceFor("other", func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") })} {
		h.OnUpdate(svc, svc)
	}
	if !slices.Equal(woken, []string{"waits"}) {
		t.Errorf("woken %v", woken)
	}
	after := waits.DeepCopy()
	after.ResourceVersion = "2"
	h.OnUpdate(waits, after) // an update is not a resync
	if len(woken) > 1 {
		t.Errorf("woken %v", woken)
	}
}

// TestUnmanagedIsSilent: no log line, Event or write for an unmanaged Service.
func TestUnmanagedIsSilent(t *testing.T) {
	var log bytes.Buffer
	settings := &servicerecord.Scope{Class: "ironlb.io/lb", OnlyClass: true, IPMode: "Proxy"}
	for _, settings := range []*servicerecord.Scope{defaults, settings} {
		l := NewLedger(slog.New(slog.DiscardHandler), settings)
		l.Requeue, l.PoolsChanged = func(pools.ServiceKey) {}, func() {}
		l.Adopt(nil)
		l.log = slog.New(slog.NewTextHandler(&log, nil))
		api, events := fake.NewClientset(), record.NewFakeRecorder(10)
		r := &Registrar{Log: l.log, events: events, settings: settings, ledger: l, api: api.CoreV1()}
		classes := newClassController(r, nil, 1)
		d := newDivergence(r, func(k pools.ServiceKey) { t.Errorf("woken %s", k) })
		others := []*v1.Service{
			ccmtest.ServiceFor("class", ccmtest.Shows(ccmtest.Elsewhere), func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") }),
			ccmtest.ServiceFor("plain", ccmtest.Plain),
			ccmtest.ServiceFor("gone", ccmtest.Shows(ccmtest.Elsewhere), ccmtest.Deleted),
			ccmtest.ServiceFor("name", func(s *v1.Service) {
				s.Spec.Type = v1.ServiceTypeExternalName
				s.Status.Conditions = []metav1.Condition{{Type: "example.com/Theirs"}}
			}),
		}
		if settings.OnlyClass {
			others = append(others, ccmtest.ServiceFor("none", ccmtest.Shows(ccmtest.Elsewhere)), ccmtest.ServiceFor("waits"))
		} else {
			others = append(others, ccmtest.ServiceFor("none", ccmtest.Shows(ccmtest.Elsewhere)))
		}
		for _, svc := range others {
			svc.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
			if classes.concerns(svc) {
				t.Errorf("%s concerns us", svc.Name)
			}
			if err := classes.sync(t.Context(), svc); err != nil {
				t.Error(err)
			}
			if settings.Classless(svc) {
				if err := r.serve(t.Context(), svc); err != nil {
					t.Error(err)
				}
			}
			d.handler(t.Context()).OnUpdate(svc, svc)
			d.handler(t.Context()).OnDelete(svc)
		}
		if len(api.Actions()) > 0 || len(events.Events) > 0 || log.Len() > 0 {
			t.Errorf("wrote %v, %d Events, logged %s", api.Actions(), len(events.Events), log.String())
		}
	}
}
