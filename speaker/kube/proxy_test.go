package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

func plain(change func(*corev1.Service)) *corev1.Service {
	return ours(func(s *corev1.Service) {
		s.Annotations, s.Status, s.Spec.Type = nil, corev1.ServiceStatus{}, corev1.ServiceTypeClusterIP
		if change != nil {
			change(s)
		}
	})
}

// Adding or removing the label of another proxy hands a Service over or takes it back.
func TestLabelAtRuntime(t *testing.T) {
	labelled := func(name string) *corev1.Service {
		return plain(func(s *corev1.Service) { s.Labels = map[string]string{labelProxy: name} })
	}
	state := func(v *view.View) [2]bool {
		_, here := v.Services[web]
		_, other := v.OtherProxy[web]
		return [2]bool{here, other}
	}
	for _, tt := range []struct {
		serviceProxy bool
		steps        []*corev1.Service
		want         [][2]bool
	}{
		{true, []*corev1.Service{plain(nil), labelled("x"), labelled("ironlb"), labelled(""), plain(nil)},
			[][2]bool{{true, false}, {false, true}, {true, false}, {false, true}, {true, false}}},
		{false, []*corev1.Service{labelled("ironlb"), labelled("x"), labelled("ironlb"), plain(nil), labelled("ironlb")},
			[][2]bool{{true, false}, {false, true}, {true, false}, {false, false}, {true, false}}},
	} {
		f := newProxyFeed(t, tt.serviceProxy)
		f.services.Add(tt.steps[0])
		f.run(t)
		for i, svc := range tt.steps {
			if i > 0 {
				f.services.Modify(svc)
			}
			touched := f.until(t, "label", func(v *view.View) bool { return state(v) == tt.want[i] })
			if _, ok := touched.Services[web]; i > 0 && ok != (tt.want[i][0] || tt.want[i-1][0]) {
				t.Errorf("service proxy %v, step %d: touched %+v", tt.serviceProxy, i, touched)
			}
			if i > 0 && touched.ServiceNetworks != (tt.want[i][1] != tt.want[i-1][1]) {
				t.Errorf("service proxy %v, step %d: networks touched: %v", tt.serviceProxy, i, touched.ServiceNetworks)
			}
		}
	}
}

// A Service that is not served here triggers nothing and is not in the View.
func TestServicesOfOthersAreLeftOut(t *testing.T) {
	f := newFeed(t)
	f.services.Add(plain(nil))
	f.run(t)
	f.until(t, "first list", func(v *view.View) bool { return v != nil })
	f.services.Modify(plain(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }))
	f.nodes.Add(readyNode("a", ""))
	touched := f.until(t, "node", func(v *view.View) bool { _, ok := v.Nodes["a"]; return ok })
	if len(f.source.view.Services)+len(touched.Services) > 0 {
		t.Errorf("View has %v, touched %v", f.source.view.Services, touched.Services)
	}
}

func TestServiceNetworks(t *testing.T) {
	f := newProxyFeed(t, true)
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	cidr.Spec.CIDRs = []string{"198.51.100.0/24", "2001:db8:2::/112"}
	f.cidrs.Add(cidr)
	f.run(t)
	if touched := f.until(t, "ServiceCIDR", func(v *view.View) bool { return len(v.ServiceNetworks["kubernetes"]) == 2 }); !touched.ServiceNetworks {
		t.Errorf("touched %+v", touched)
	}
	f.cidrs.Delete(cidr)
	f.until(t, "ServiceCIDR gone", func(v *view.View) bool { return len(v.ServiceNetworks) == 0 })
}

// The node's own facts arrive by the same path.
func TestNodeKnowledge(t *testing.T) {
	f := newFeed(t)
	f.run(t)
	f.until(t, "first list", func(v *view.View) bool { return v != nil })
	check := view.Check{Node: "b", Addr: netip.MustParseAddr("198.51.100.2"), Port: 10256, Path: "/healthz"}
	f.source.Checked(check, &view.CheckResult{Healthy: true, Weight: 3})
	touched := f.until(t, "check", func(v *view.View) bool { return v.Checks[check] == view.CheckResult{Healthy: true, Weight: 3} })
	if _, ok := touched.Checks[check]; !ok {
		t.Errorf("touched %+v", touched)
	}
	f.source.Checked(check, nil)
	f.until(t, "check gone", func(v *view.View) bool { return len(v.Checks) == 0 })

	host := func() map[netip.Addr]struct{} {
		return map[netip.Addr]struct{}{netip.MustParseAddr("198.51.100.1"): {}}
	}
	f.source.SetHost(host())
	if touched := f.until(t, "host", func(v *view.View) bool { return len(v.Host) == 1 }); !touched.Host {
		t.Errorf("touched %+v", touched)
	}
	f.source.SetHost(host())
	if _, touched, _ := f.source.Observe(); touched.Any() {
		t.Errorf("the same addresses again touch %+v", touched)
	}
	f.source.SetHost(nil)
	f.until(t, "host gone", func(v *view.View) bool { return len(v.Host) == 0 })
}

// Each text is written once, and again when it changed or came back, also if it was reported before Run.
func TestEvents(t *testing.T) {
	client := fake.NewClientset()
	written := make(chan string, 10)
	names := map[string]bool{}
	record := func(action ktesting.Action) (bool, runtime.Object, error) {
		if action.GetVerb() != "create" {
			return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", errors.New(action.GetVerb()))
		}
		ev := action.(ktesting.CreateAction).GetObject().(*corev1.Event)
		if names[ev.Name] {
			return true, nil, apierrors.NewAlreadyExists(corev1.Resource("events"), ev.Name)
		}
		names[ev.Name] = true
		if ev.Count > 1 {
			written <- fmt.Sprintf("again %s, %d", ev.Reason, ev.Count)
			return true, ev, nil
		}
		about := ev.InvolvedObject
		written <- strings.Join([]string{ev.Type, ev.Reason, about.Kind, about.Namespace + "/" + about.Name, string(about.UID), ev.Source.Component, ev.Message}, "|")
		return true, ev, nil
	}
	client.PrependReactor("*", "events", record)
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := store.Add(ours(nil)); err != nil {
		t.Fatal(err)
	}
	e := newEvents("a", store, client.CoreV1())
	failed := map[pools.ServiceKey]error{web: errors.New("port 31000 is taken"), {Namespace: "x", Name: "gone"}: errors.New("?")}
	e.HealthPorts(failed)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	var seen []string
	until := func(n int) {
		t.Helper()
		for len(seen) < n {
			select {
			case text := <-written:
				seen = append(seen, text)
			case <-time.After(patience):
				t.Fatalf("%d Events, want %d: %q", len(seen), n, seen)
			}
		}
	}
	until(1)
	want := "Warning|FailedToStartServiceHealthcheck|Service|default/web|u|ironlb-speaker|node a: port 31000 is taken"
	if seen[0] != want {
		t.Errorf("Event %q, want %q", seen[0], want)
	}
	e.HealthPorts(failed) // no change
	e.Warn("KubeProxyConflict", "kube-proxy deletes what is ours")
	until(2)
	e.Warn("KubeProxyConflict", "kube-proxy deletes what is ours") // no change
	e.HealthPorts(nil)
	e.HealthPorts(failed)
	until(3)
	e.Warn("KubeProxyConflict", "")
	e.Warn("KubeProxyConflict", "kube-proxy deletes what is ours")
	until(4)
	want = "Warning|KubeProxyConflict|Node|/a|a|ironlb-speaker|kube-proxy deletes what is ours"
	if seen[1] != want || seen[2] != "again FailedToStartServiceHealthcheck, 2" || seen[3] != "again KubeProxyConflict, 2" {
		t.Errorf("Events %q, want %q second and each once more", seen, want)
	}
	select {
	case more := <-written:
		t.Errorf("one more Event: %q", more)
	default:
	}

	vips := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := vips.Add(virtualIP()); err != nil {
		t.Fatal(err)
	}
	status := report.VIPStatus{Node: "a", Announced: true, Moved: view.FirstUse, At: time.Unix(1, 0)}
	publish := func() { e.VIPs(vips, map[string]report.VIPStatus{"203.0.113.4": status}) }
	publish() // the first use causes no Event
	status.Moved, status.From, status.Cause, status.At = view.OwnerLost, "b", view.NoLocalEndpoint, time.Unix(1, 1)
	publish() // neither does a move of the endpoint
	status.Cause, status.At, status.Took = view.NodeNotAlive, time.Unix(2, 0), 312400*time.Microsecond
	publish()
	publish()
	until(5)
	status.Conflict, status.ConflictReason = "another host answers", view.AddressConflict // ironlb-ccm reports it
	publish()
	about := "|Service|default/web|u|ironlb-speaker|"
	if seen[4] != "Normal|OwnerLost"+about+"node a answers for 203.0.113.4 in place of node b after 312ms: its speaker is not received" {
		t.Errorf("Events %q", seen[4:])
	}
	status.Moved, status.From, status.At, status.Took = view.TakenOver, "c", time.Unix(3, 0), 0
	publish()
	publish()
	until(6)
	if want := "Normal|TakenOver" + about + "node a answers for 203.0.113.4 in place of node c"; seen[5] != want {
		t.Errorf("Event %q, want %q", seen[5], want)
	}
	select {
	case more := <-written:
		t.Errorf("one more Event: %q", more)
	default:
	}
}
