package kube

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

const patience = 10 * time.Second

var web = pools.ServiceKey{Namespace: "default", Name: "web"}

// feed is an in-memory API server, one source per kind.
type feed struct {
	services, slices, nodes, vips, ads, cidrs, pools *fcache.FakeControllerSource
	source                                           *Source
	triggers                                         chan struct{}
}

func newFeed(t *testing.T) *feed { return newProxyFeed(t, false) }

func newProxyFeed(t *testing.T, serviceProxy bool) *feed {
	t.Helper()
	f := &feed{
		services: fcache.NewFakeControllerSource(), slices: fcache.NewFakeControllerSource(), nodes: fcache.NewFakeControllerSource(),
		vips: fcache.NewFakeControllerSource(), ads: fcache.NewFakeControllerSource(), cidrs: fcache.NewFakeControllerSource(), pools: fcache.NewFakeControllerSource(), triggers: make(chan struct{}, 1000),
	}
	var err error
	f.source, err = newSource(f.watches(serviceProxy), func() { f.triggers <- struct{}{} }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *feed) watches(serviceProxy bool) []watch {
	return []watch{
		{kind: kindService, object: &corev1.Service{}, from: f.services, convert: convertService(ServiceOptions{ServiceProxy: serviceProxy}), trim: trimService(ServiceOptions{ServiceProxy: serviceProxy})},
		{kind: kindSlice, object: &discoveryv1.EndpointSlice{}, from: f.slices, convert: convertSlice, trim: trim},
		{kind: kindNode, object: &corev1.Node{}, from: f.nodes, convert: convertNode(false), trim: trim},
		{kind: kindVIP, object: &v1alpha1.VirtualIP{}, from: f.vips, convert: convertVIP, trim: trim},
		{kind: kindAdvertisement, object: &v1alpha1.L2Advertisement{}, from: f.ads, convert: convertAdvertisement, trim: trim},
		{kind: kindServiceCIDR, object: &networkingv1.ServiceCIDR{}, from: f.cidrs, convert: convertServiceCIDR, trim: trim, optional: true},
		{kind: kindPool, object: &v1alpha1.IPAddressPool{}, from: f.pools, convert: convertPool, trim: trim, optional: true},
	}
}

func (f *feed) run(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.source.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// until observes at each trigger until the condition holds, and returns what was touched.
func (f *feed) until(t *testing.T, what string, done func(*view.View) bool) view.Touched {
	t.Helper()
	all := view.Touched{Services: map[pools.ServiceKey]struct{}{}, Nodes: map[string]struct{}{}, VIPs: map[string]struct{}{}, Checks: map[view.Check]struct{}{}}
	deadline := time.After(patience)
	for {
		v, touched, ok := f.source.Observe()
		maps.Copy(all.Services, touched.Services)
		maps.Copy(all.Nodes, touched.Nodes)
		maps.Copy(all.VIPs, touched.VIPs)
		maps.Copy(all.Checks, touched.Checks)
		all.Since = append(all.Since, touched.Since...)
		all.Advertisements = all.Advertisements || touched.Advertisements
		all.Host, all.ServiceNetworks = all.Host || touched.Host, all.ServiceNetworks || touched.ServiceNetworks
		if ok && done(v) {
			return all
		}
		select {
		case <-f.triggers:
		case <-deadline:
			t.Fatalf("%s: not seen in the View", what)
		}
	}
}

func slice(name string, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func readyNode(name, heartbeat string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Message: heartbeat}}
	return n
}

func virtualIP() *v1alpha1.VirtualIP {
	return &v1alpha1.VirtualIP{
		ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.4"},
		Spec: v1alpha1.VirtualIPSpec{Addresses: []string{"203.0.113.4"}, Nodes: []string{"a"},
			Services: []v1alpha1.ServiceReference{{Namespace: "default", Name: "web"}}},
	}
}

func TestViewFollowsTheAPI(t *testing.T) {
	f := newFeed(t)
	if _, _, ok := f.source.Observe(); ok {
		t.Fatal("synced before anything was listed")
	}
	f.services.Add(ours(nil))
	f.slices.Add(slice("web-1", "192.0.2.10"))
	f.nodes.Add(readyNode("a", ""))
	f.vips.Add(virtualIP())
	f.ads.Add(&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}})
	f.run(t)
	f.until(t, "first list", func(v *view.View) bool {
		return len(v.Services) == 1 && len(v.Slices[web]) == 1 && len(v.Nodes) == 1 && len(v.VIPs) == 1 && len(v.Advertisements) == 1
	})
	f.source.SetLinks(map[string]view.Link{"eth0": {Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}})
	f.until(t, "link", func(v *view.View) bool { return len(v.Links) == 1 })
	f.source.SetLinks(map[string]view.Link{"eth0": {Name: "eth0", MAC: "02:00:00:00:00:01", Subnets: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}})
	f.until(t, "MAC", func(v *view.View) bool { return v.Links["eth0"].MAC != "" })
	d := plan.Make(f.source.view, plan.Options{Node: "a"}, time.Now())
	if len(d.Table) != 4 || len(d.Announce) != 1 {
		t.Fatalf("plan: %v, announce %v", d.Table, d.Announce)
	}

	f.slices.Add(slice("web-2", "192.0.2.20"))
	touched := f.until(t, "second slice", func(v *view.View) bool { return len(v.Slices[web]) == 2 })
	if _, ok := touched.Services[web]; !ok || len(touched.Nodes)+len(touched.VIPs) > 0 || touched.Advertisements {
		t.Errorf("touched %+v, want the Service alone", touched)
	}
	f.slices.Delete(slice("web-2"))
	f.until(t, "slice gone", func(v *view.View) bool { return len(v.Slices[web]) == 1 })

	f.services.Modify(ours(func(s *corev1.Service) { s.Annotations, s.Status.Conditions = nil, nil }))
	f.until(t, "Service no longer ours", func(v *view.View) bool { return len(v.Services) == 0 })
	f.services.Modify(ours(nil))
	f.until(t, "Service ours again", func(v *view.View) bool { return len(v.Services) == 1 })

	down := readyNode("a", "")
	down.Status.Conditions = append(down.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue})
	f.nodes.Modify(down)
	if touched := f.until(t, "node without network", func(v *view.View) bool { return v.Nodes["a"].NetworkUnavailable }); len(touched.Nodes) != 1 {
		t.Errorf("touched %+v, want the Node", touched)
	}
	f.vips.Delete(virtualIP())
	f.until(t, "VirtualIP gone", func(v *view.View) bool { return len(v.VIPs) == 0 })
}

// A change without effect on the plan triggers nothing: the heartbeat of a node passes unobserved.
func TestHeartbeatsTriggerNothing(t *testing.T) {
	f := newFeed(t)
	f.nodes.Add(readyNode("a", "first"))
	f.run(t)
	f.until(t, "first list", func(v *view.View) bool { return len(v.Nodes) == 1 })
	for range 10 {
		f.nodes.Modify(readyNode("a", "again"))
	}
	f.nodes.Add(readyNode("b", ""))
	triggers := 0
	for done := false; !done; {
		v, _, _ := f.source.Observe()
		if _, done = v.Nodes["b"]; !done {
			select {
			case <-f.triggers:
				triggers++
			case <-time.After(patience):
				t.Fatal("node b not seen")
			}
		}
	}
	if triggers > 2 { // one may remain from the first list
		t.Errorf("%d triggers for ten heartbeats and one node", triggers)
	}
}
