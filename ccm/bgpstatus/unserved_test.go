package bgpstatus

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// fixture is a Service with an address, and its endpoints as NODE[@PORT][/terminating], or NODE@other family.
type fixture struct {
	*v1.Service
	at        string
	endpoints []string
}

func newFixture(name, at string, local bool, endpoints ...string) fixture {
	svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}}}
	svc.Spec.Ports = []v1.ServicePort{{Port: 80}}
	if local {
		svc.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
	}
	return fixture{svc, at, endpoints}
}

func twoPorts(f fixture) fixture {
	f.Spec.Ports = append(f.Spec.Ports, v1.ServicePort{Name: "metrics", Port: 81})
	return f
}

func direct(f fixture) fixture {
	f.Annotations = map[string]string{v1alpha1.AnnotationForwarding: "direct"}
	return f
}

// unservedOf has the Services with their addresses, of pool main, and their endpoints.
func unservedOf(services ...fixture) (unserved, []*v1.Service) {
	byName := map[string]fixture{}
	var all []*v1.Service
	for _, f := range services {
		byName[f.Name] = f
		all = append(all, f.Service)
	}
	scope := servicerecord.DefaultScope()
	return unserved{
		log: slog.New(slog.DiscardHandler), ready: func() bool { return true }, known: func() bool { return true },
		publish:    func(map[netip.Addr]condition.Problem) {},
		forwarding: scope.ForwardingOf,
		held: func(svc *v1.Service) []pools.Address {
			return []pools.Address{{Addr: netip.MustParseAddr(byName[svc.Name].at), Pool: "main"}}
		},
		endpoints: func(svc *v1.Service) (slices []*discoveryv1.EndpointSlice) {
			for _, text := range byName[svc.Name].endpoints {
				text, terminating := strings.CutSuffix(text, "/terminating")
				node, port, _ := strings.Cut(text, "@")
				ready, family := !terminating, discoveryv1.AddressTypeIPv4
				if netip.MustParseAddr(byName[svc.Name].at).Is6() != (port == "other family") {
					family = discoveryv1.AddressTypeIPv6
				}
				if port == "other family" {
					port = ""
				}
				slices = append(slices, &discoveryv1.EndpointSlice{
					AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: ptr.To[int32](8080)}},
					Endpoints: []discoveryv1.Endpoint{{NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating}}},
				})
			}
			return slices
		},
	}, all
}

// takes gives every session of the status the families.
func takes(s v1alpha1.SpeakerStatus, families ...v1.IPFamily) v1alpha1.SpeakerStatus {
	for i := range s.Status.BGP.Sessions {
		s.Status.BGP.Sessions[i].Families = families
	}
	return s
}

// TestUnserved: an address is unserved only if no node announces it, or if it is announced without an endpoint.
func TestUnserved(t *testing.T) {
	const addr = "203.0.113.4"
	out := func(n *v1.Node) { n.Labels = map[string]string{v1.LabelNodeExcludeBalancers: ""} }
	on := func(nodes ...string) func(*v1alpha1.BGPAdvertisementSpec) {
		return func(a *v1alpha1.BGPAdvertisementSpec) {
			a.NodeSelectors = []metav1.LabelSelector{{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: metav1.LabelSelectorOpIn, Values: nodes}}}}
		}
	}
	both := []v1alpha1.SpeakerStatus{takes(speaker("a", "tor=Established"), v1.IPv4Protocol), takes(speaker("b", "tor=Active/Refused"), v1.IPv4Protocol)}
	first := []v1alpha1.SpeakerStatus{both[0], speaker("b")}
	down := []v1alpha1.SpeakerStatus{takes(speaker("a", "tor=Idle/BFDDown"), v1.IPv4Protocol), both[1]}
	nodes := []*v1.Node{ccmtest.Node("a", ccmtest.Rack("1")), ccmtest.Node("b", ccmtest.Rack("2"))}
	for _, tt := range []struct {
		name     string
		ads      []v1alpha1.BGPAdvertisement
		nodes    []*v1.Node
		speakers []v1alpha1.SpeakerStatus
		absent   map[string]v1alpha1.Absence
		services []fixture
		want     string
	}{
		{name: "announced", services: []fixture{newFixture("web", addr, false, "b")}},
		{name: "announced by one of two", speakers: first, services: []fixture{newFixture("web", addr, false, "b")}},
		{name: "no endpoint", services: []fixture{newFixture("web", addr, false)}, want: "NoEndpoint all"},
		{name: "a terminating endpoint", services: []fixture{newFixture("web", addr, false, "b/terminating")}},
		{name: "local, here", services: []fixture{newFixture("web", addr, true, "a")}},
		{name: "local, on the node without a peer", speakers: first, services: []fixture{newFixture("web", addr, true, "b")}, want: "NoLocalEndpoint all"},
		{name: "local, ready there and terminating here", speakers: first, services: []fixture{newFixture("web", addr, true, "b", "a/terminating")}, want: "NoLocalEndpoint all"},
		{name: "local, of another port", services: []fixture{newFixture("web", addr, true, "b@metrics")}, want: "NoLocalEndpoint all"},
		{name: "not local, of another port", services: []fixture{newFixture("web", addr, false, "b@metrics")}, want: "NoEndpoint all"},
		{name: "local, of the other family", services: []fixture{newFixture("web", addr, true, "b@other family")}, want: "NoLocalEndpoint all"},
		{name: "local, two ports, apart", services: []fixture{twoPorts(newFixture("web", addr, true, "a", "b@metrics"))}, want: "NoLocalEndpoint all"},
		{name: "local, two ports, together", services: []fixture{twoPorts(newFixture("web", addr, true, "a", "b", "a@metrics"))}},
		{name: "local, two ports, one without endpoint", services: []fixture{twoPorts(newFixture("web", addr, true, "a"))}},
		{name: "local, terminating here", speakers: first, services: []fixture{newFixture("web", addr, true, "a/terminating")}},
		{name: "local and direct, on the node without a peer", speakers: first, services: []fixture{direct(newFixture("web", addr, true, "b"))}},
		{name: "local, none", services: []fixture{newFixture("web", addr, true)}, want: "NoLocalEndpoint all"},
		{name: "two local, apart", services: []fixture{newFixture("web", addr, true, "a"), newFixture("api", addr, true, "b")}, want: "NoLocalEndpoint all"},
		{name: "two local, together", services: []fixture{newFixture("web", addr, true, "a", "b"), newFixture("api", addr, true, "a")}},
		{name: "two local, one without endpoint", services: []fixture{newFixture("web", addr, true, "a"), newFixture("api", addr, true)}},
		{name: "local and not", services: []fixture{newFixture("web", addr, true), newFixture("api", addr, false, "b")}},
		{name: "no peer", speakers: []v1alpha1.SpeakerStatus{speaker("a"), speaker("b")}, services: []fixture{newFixture("web", addr, false, "b")}, want: "NoPeer all"},
		{name: "no session of the peer", speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Idle/PasswordMissing")}, services: []fixture{newFixture("web", addr, false, "b")}, want: "NoPeer all"},
		{name: "a session of an earlier speaker", speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established")}, services: []fixture{newFixture("web", addr, false, "b"), newFixture("six", "2001:db8::4", false, "b")}},
		{name: "of an earlier speaker, down", speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Active/Refused")}, services: []fixture{newFixture("web", addr, false, "b")}, want: "NoPeer all"},
		{name: "no session is established", speakers: down, services: []fixture{newFixture("web", addr, false, "b")}, want: "NoSession all"},
		{name: "no session, no endpoint", speakers: down, services: []fixture{newFixture("web", addr, false)}, want: "NoSession all"},
		{name: "local, on the node whose session is down", services: []fixture{newFixture("web", addr, true, "b")}, want: "NoSession all"},
		{name: "no session on the node that is not excluded", nodes: []*v1.Node{ccmtest.Node("a", out), ccmtest.Node("b")},
			services: []fixture{newFixture("web", addr, false, "b")}, want: "NoSession all"},
		{name: "no peer of the family", services: []fixture{newFixture("web", "2001:db8::4", false, "b")}, want: "NoPeer all"},
		{name: "another peer", ads: []v1alpha1.BGPAdvertisement{bgpAd("all", func(a *v1alpha1.BGPAdvertisementSpec) { a.Peers = []string{"six"} })},
			services: []fixture{newFixture("web", addr, false, "b")}, want: "NoPeer all"},
		{name: "excluded", nodes: []*v1.Node{ccmtest.Node("a", out), ccmtest.Node("b", out)}, services: []fixture{newFixture("web", addr, false, "b")}, want: "Excluded all"},
		{name: "one excluded", nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b", out)}, services: []fixture{newFixture("web", addr, false, "b")}},
		{name: "one excluded, the other without a peer", nodes: []*v1.Node{ccmtest.Node("a", out), ccmtest.Node("b")}, speakers: first, services: []fixture{newFixture("web", addr, false, "b")}, want: "NoPeer all"},
		{name: "no node", ads: []v1alpha1.BGPAdvertisement{bgpAd("all", on("3"))}, services: []fixture{newFixture("web", addr, false, "b")}},
		{name: "the other rack", ads: []v1alpha1.BGPAdvertisement{bgpAd("all", on("2"))}, speakers: first, services: []fixture{newFixture("web", addr, false, "b")}, want: "NoPeer all"},
		{name: "two advertisements", ads: []v1alpha1.BGPAdvertisement{bgpAd("all", on("2")), bgpAd("more", on("1"))}, speakers: first, services: []fixture{newFixture("web", addr, false, "b")}},
		{name: "two advertisements, local", ads: []v1alpha1.BGPAdvertisement{bgpAd("all", on("2")), bgpAd("more", on("1"))}, speakers: first,
			services: []fixture{newFixture("web", addr, true, "b")}, want: "NoLocalEndpoint all more"},
		{name: "not of the Service", ads: []v1alpha1.BGPAdvertisement{bgpAd("all", func(a *v1alpha1.BGPAdvertisementSpec) {
			a.ServiceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"app": "db"}}}
		})}, services: []fixture{newFixture("web", addr, false)}},
		{name: "without its community", ads: []v1alpha1.BGPAdvertisement{bgpAd("all", func(a *v1alpha1.BGPAdvertisementSpec) { a.Communities = []string{"none"} })},
			services: []fixture{newFixture("web", addr, false)}},
		{name: "a node without a Node object", nodes: []*v1.Node{nodes[1]}, speakers: first, services: []fixture{newFixture("web", addr, false, "b")}},
		{name: "that is gone", nodes: []*v1.Node{nodes[1]}, speakers: first, absent: map[string]v1alpha1.Absence{"a": v1alpha1.AbsenceSilent},
			services: []fixture{newFixture("web", addr, false, "b")}, want: "NoPeer all"},
		{name: "an absent speaker keeps its routes", absent: map[string]v1alpha1.Absence{"a": v1alpha1.AbsenceSilent}, speakers: first, services: []fixture{newFixture("web", addr, false, "b")}},
	} {
		u, services := unservedOf(tt.services...)
		o := bgpObjects{services: services, nodes: nodes, absent: tt.absent}
		o.ads.Items, o.speakers.Items = []v1alpha1.BGPAdvertisement{bgpAd("all")}, both
		if tt.ads != nil {
			o.ads.Items = tt.ads
		}
		if tt.nodes != nil {
			o.nodes = tt.nodes
		}
		if tt.speakers != nil {
			o.speakers.Items = tt.speakers
		}
		_, ads := evaluateAdvertisements(&o)
		var got []string
		for _, is := range u.evaluate(&o, ads) {
			got = append(got, is.reason)
			for _, i := range is.ads {
				got = append(got, ads[i].name)
			}
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
}

// TestUnservedIsWritten: a change of a hundred addresses is one write of the advertisement with ten of them, after the
// grace period; a flap within it is none, and neither is the first pass of another process.
func TestUnservedIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sch := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(sch); err != nil {
			t.Fatal(err)
		}
		tor, all, report := bgpPeer("tor"), bgpAd("all"), takes(speaker("a", "tor=Established"), v1.IPv4Protocol)
		writes := 0
		cl := fake.NewClientBuilder().WithScheme(sch).WithStatusSubresource(&tor, &all).WithObjects(&tor, &all, &report).WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if _, is := obj.(*v1alpha1.BGPAdvertisement); is {
					writes++
				}
				return c.SubResource(sub).Patch(ctx, obj, p, opts...)
			},
		}).Build()
		store := func(objects ...any) cache.Indexer {
			out := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			for _, o := range objects {
				if err := out.Add(o); err != nil {
					t.Fatal(err)
				}
			}
			return out
		}
		var services []fixture
		index := store()
		for i := range 100 {
			services = append(services, newFixture(fmt.Sprint("web", i), fmt.Sprint("203.0.113.", i), false, "a"))
			if err := index.Add(services[i].Service); err != nil {
				t.Fatal(err)
			}
		}
		var published map[netip.Addr]condition.Problem
		start := func() *Controller {
			b := New(slog.New(slog.DiscardHandler), record.NewFakeRecorder(10), cl, corelisters.NewServiceLister(index), corelisters.NewNodeLister(store(ccmtest.Node("a"))))
			b.unserved, _ = unservedOf(services...)
			b.unserved.publish = func(all map[netip.Addr]condition.Problem) { published = all }
			return b
		}
		b := start()
		pass := func(what string, wantWrites, wantWarnings int, want string) {
			t.Helper()
			writes = 0
			if err := b.pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			var ad v1alpha1.BGPAdvertisement
			if err := cl.Get(t.Context(), client.ObjectKey{Name: "all"}, &ad); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, u := range ad.Status.Unserved {
				got += fmt.Sprintf("%s %d %d", u.Reason, u.Count, len(u.Addresses))
			}
			if got != want || writes != wantWrites || len(published) != wantWarnings {
				t.Errorf("%s: %q, %d writes, %d warnings; want %q, %d and %d", what, got, writes, len(published), want, wantWrites, wantWarnings)
			}
		}
		sessions := func(families ...v1.IPFamily) {
			t.Helper()
			if err := cl.Get(t.Context(), client.ObjectKey{Name: "a"}, &report); err != nil {
				t.Fatal(err)
			}
			report = takes(report, families...)
			report.Status.BGP.Sessions[0].State = "Established"
			if len(families) == 0 {
				report.Status.BGP.Sessions[0].State = "Idle" // the peer is impossible
			}
			if err := cl.Update(t.Context(), &report); err != nil {
				t.Fatal(err)
			}
		}
		pass("at first", 1, 0, "")
		sessions()
		pass("without a session", 0, 0, "")
		sessions(v1.IPv4Protocol)
		time.Sleep(5 * time.Second)
		pass("a flap", 0, 0, "")
		sessions()
		pass("without a session", 0, 0, "")
		time.Sleep(watch.UnannouncedFor)
		pass("after the grace period", 1, 10, "NoPeer 100 10")
		slices.SortFunc(services, func(a, b fixture) int { return netip.MustParseAddr(a.at).Compare(netip.MustParseAddr(b.at)) })
		if got := slices.MaxFunc(slices.Collect(maps.Keys(published)), netip.Addr.Compare); got.String() != services[9].at {
			t.Errorf("the highest listed address is %v", got)
		}
		b = start()
		pass("another process", 0, 10, "NoPeer 100 10")
		sessions(v1.IPv4Protocol)
		pass("with a session", 1, 0, "")
		pass("again", 0, 0, "")
		b = start()
		sessions()
		pass("another process without the speaker's session", 0, 0, "")
		time.Sleep(watch.UnannouncedFor)
		pass("after the grace period", 1, 10, "NoPeer 100 10")
		sessions(v1.IPv4Protocol)
		pass("with a session", 1, 0, "")
		if b.due.Stop() {
			t.Error("a pass is scheduled without need")
		}
	})
}
