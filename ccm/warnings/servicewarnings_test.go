package warnings

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
)

func TestServiceWarnings(t *testing.T) {
	annotate := func(key, value string) func(*v1.Service) {
		return func(s *v1.Service) { s.Annotations[key] = value }
	}
	ranges := func(texts ...string) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = texts }
	}
	for name, tt := range map[string]struct {
		change func(*v1.Service)
		want   []string
	}{
		"nothing special": {nil, nil},
		"good ranges":     {ranges("192.0.2.0/24", "2001:db8::/32"), nil},
		"good annotations": {func(s *v1.Service) {
			annotate(v1alpha1.AnnotationScheduler, "mh,port")(s)
			annotate(v1alpha1.AnnotationForwarding, "nodeport")(s)
		}, nil},
		"IPv6 closed":        {ranges("192.0.2.0/24"), []string{"FamilyClosed: spec.loadBalancerSourceRanges has no IPv6 range and refuses all connections of that family. Add ::/0 to allow all sources"}},
		"not a family of it": {func(s *v1.Service) { ranges("192.0.2.0/24")(s); s.Spec.IPFamilies = s.Spec.IPFamilies[:1] }, nil},
		"unreadable range": {annotate(v1alpha1.AnnotationSourceRanges, "x,2001:db8::/32"), []string{
			`UnreadableSourceRange: Annotation service.beta.kubernetes.io/load-balancer-source-ranges: "x" is not a CIDR and allows no source. Write it as 192.0.2.0/24 or 2001:db8::/32`,
			"FamilyClosed: Annotation service.beta.kubernetes.io/load-balancer-source-ranges has no IPv4 range and refuses all connections of that family. Add 0.0.0.0/0 to allow all sources",
		}},
		"scheduler": {annotate(v1alpha1.AnnotationScheduler, "best"), []string{
			`UnknownScheduler: Annotation ironlb.io/scheduler: "best" is no scheduler: give one of rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh. The default of the nodes is used`}},
		"forwarding": {annotate(v1alpha1.AnnotationForwarding, "tunnel"), []string{
			`UnknownForwarding: Annotation ironlb.io/forwarding: "tunnel" is no way of forwarding: give pod, nodeport or direct. pod is used`}},
		"annotations of MetalLB": {func(s *v1.Service) {
			annotate("metallb.io/address-pool", "web")(s)
			annotate("metallb.io/ip-allocated-from-pool", "web")(s)
			annotate("metallb.universe.tf/ip-allocated-from-pool", "web")(s)
			annotate("example.com/address-pool", "web")(s)
			annotate(v1alpha1.AnnotationAllocatedFrom, "web")(s)
		}, nil},
		"legacy annotations of MetalLB": {func(s *v1.Service) {
			annotate("metallb.universe.tf/address-pool", "web")(s)
			annotate("metallb.universe.tf/loadBalancerIPs", "192.0.2.1")(s)
			annotate("metallb.universe.tf/allow-shared-ip", "k")(s)
		}, []string{
			"LegacyAnnotation: Annotation metallb.universe.tf/address-pool is not read: write ironlb.io/ip-pool instead",
			"LegacyAnnotation: Annotation metallb.universe.tf/allow-shared-ip is not read: write ironlb.io/sharing-key instead",
			"LegacyAnnotation: Annotation metallb.universe.tf/loadBalancerIPs is not read: write ironlb.io/ips instead",
		}},
		"unknown annotations": {func(s *v1.Service) {
			annotate("ironlb.io/address-pool", "web")(s)
			annotate("metallb.io/ip-pool", "web")(s)
		}, []string{
			"UnknownAnnotation: Annotation ironlb.io/address-pool is not read: no annotation of a Service has this name",
			"UnknownAnnotation: Annotation metallb.io/ip-pool is not read: no annotation of a Service has this name",
		}},
		"no node port": {func(s *v1.Service) {
			annotate(v1alpha1.AnnotationForwarding, "nodeport")(s)
			s.Spec.Ports[0].NodePort = 0
		}, []string{
			"NoNodePort: Annotation ironlb.io/forwarding is nodeport, but port 80 has no node port: connections go straight to the Pods. " +
				"Set spec.allocateLoadBalancerNodePorts to true, or remove the annotation"}},
	} {
		var got []string
		for _, one := range serviceWarnings(ccmtest.WarnedService("web", tt.change), v1alpha1.ForwardingPod) {
			got = append(got, one.reason+": "+one.message)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The oldest claimant of an endpoint has it, in any order of arrival. The others get a warning, and another one when
// the endpoint's owner changes.
func TestClaims(t *testing.T) {
	key := func(name string) pools.ServiceKey { return pools.ServiceKey{Namespace: "default", Name: name} }
	claim := func(c *claims, name string, created int64, port int32) []pools.ServiceKey {
		svc := ccmtest.WarnedService(name, func(s *v1.Service) {
			s.Spec.ExternalIPs, s.Spec.Ports[0].Port = []string{"203.0.113.4", "::ffff:203.0.113.4"}, port
		})
		return c.set(claimant{key(name), created}, endpointsOf(svc, true, nil))
	}
	losers := func(c *claims) (out []string) {
		for _, name := range []string{"a", "b", "c"} {
			for _, one := range c.warnings(key(name)) {
				out = append(out, name+" "+one.message[:strings.Index(one.message, ",")])
			}
		}
		return out
	}
	c := newClaims(func(netip.Addr) []pools.ServiceKey { return nil })
	for _, step := range []struct {
		do     func() []pools.ServiceKey
		others []pools.ServiceKey
		losers []string
	}{
		{func() []pools.ServiceKey { return claim(c, "b", 2, 80) }, nil, nil},
		{func() []pools.ServiceKey { return claim(c, "a", 2, 80) }, []pools.ServiceKey{key("b")}, []string{"b TCP 203.0.113.4:80 belongs to Service default/a"}},
		{func() []pools.ServiceKey { return claim(c, "a", 2, 80) }, nil, []string{"b TCP 203.0.113.4:80 belongs to Service default/a"}},
		{func() []pools.ServiceKey { return claim(c, "c", 1, 80) }, []pools.ServiceKey{key("a"), key("b")},
			[]string{"a TCP 203.0.113.4:80 belongs to Service default/c", "b TCP 203.0.113.4:80 belongs to Service default/c"}},
		{func() []pools.ServiceKey { return claim(c, "a", 2, 81) }, []pools.ServiceKey{key("c"), key("b")}, []string{"b TCP 203.0.113.4:80 belongs to Service default/c"}},
		{func() []pools.ServiceKey { return c.set(claimant{service: key("c")}, nil) }, []pools.ServiceKey{key("b")}, nil},
	} {
		others := step.do()
		if !slices.Equal(others, step.others) || !slices.Equal(losers(c), step.losers) {
			t.Fatalf("others %v, losers %q; want %v, %q", others, losers(c), step.others, step.losers)
		}
	}
	for _, name := range []string{"a", "b"} {
		c.set(claimant{service: key(name)}, nil)
	}
	if len(c.of)+len(c.by) > 0 {
		t.Errorf("left over: %v %v", c.of, c.by)
	}
}

// publisherFixture runs a Publisher over an in-memory API server.
type publisherFixture struct {
	t      *testing.T
	client *fake.Clientset
	events chan string
	ctx    context.Context
}

func startPublisher(t *testing.T, client *fake.Clientset) (*publisherFixture, func()) {
	t.Helper()
	return startPublisherWith(t, client, newGuard(&Settings{}))
}

func startPublisherWith(t *testing.T, client *fake.Clientset, g *guard) (*publisherFixture, func()) {
	t.Helper()
	return startPublisherOf(t, client, g, newAnnouncements(NewUnserved()))
}

func startPublisherOf(t *testing.T, client *fake.Clientset, g *guard, of *announcements) (*publisherFixture, func()) {
	t.Helper()
	recorder := record.NewFakeRecorder(100)
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services()
	a := newPublisher(slog.New(slog.DiscardHandler), recorder, g, services.Lister(), client.CoreV1(), of)
	reg, err := services.Informer().AddEventHandler(a.handler())
	if err != nil {
		t.Fatal(err)
	}
	known, err := g.watchEndpoints(watch.NewEndpointSlices(slog.New(slog.DiscardHandler), factory))
	if err != nil {
		t.Fatal(err)
	}
	a.synced = []cache.InformerSynced{reg.HasSynced, known}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return &publisherFixture{t, client, recorder.Events, ctx}, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	}
}

func (p *publisherFixture) event(want string) {
	p.t.Helper()
	select {
	case got := <-p.events:
		if !strings.HasPrefix(got, want) {
			p.t.Fatalf("Event %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		p.t.Fatalf("no Event %q", want)
	}
}

func (p *publisherFixture) condition(name, want string) {
	p.t.Helper()
	eventually.Nil(p.t, 10*time.Second, fmt.Sprintf("condition of %s: %q", name, want), func(ctx context.Context) error {
		svc, err := p.client.CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := ""
		if c := meta.FindStatusCondition(svc.Status.Conditions, condition.Warnings); c != nil {
			got = c.Reason
		}
		return eventually.Unless(got == want, "it is %q", got)
	})
}

func (p *publisherFixture) update(svc *v1.Service) {
	p.t.Helper()
	old, err := p.client.CoreV1().Services("default").Get(p.ctx, svc.Name, metav1.GetOptions{})
	if err == nil {
		svc.Status.Conditions = old.Status.Conditions
		_, err = p.client.CoreV1().Services("default").Update(p.ctx, svc, metav1.UpdateOptions{})
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func Patches(client *fake.Clientset) (n int) {
	for _, action := range client.Actions() {
		if action.Matches("patch", "services") {
			n++
		}
	}
	return n
}

// TestTooLarge: the only warning of a Service that is not served because of its size is that.
func TestTooLarge(t *testing.T) {
	svc := ccmtest.ServiceFor("large", func(s *v1.Service) { s.Annotations[v1alpha1.AnnotationScheduler] = "best" })
	for i := range 9000 {
		svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255))
	}
	v1alpha1.LimitService(svc)
	p, stop := startPublisherWith(t, fake.NewClientset(svc), newGuard(&Settings{Scope: servicerecord.DefaultScope()}))
	defer stop()
	p.event("Warning TooLarge The Service is not served: its ports (")
	p.condition("large", "TooLarge")
	if len(p.events) > 0 {
		t.Errorf("another Event: %q", <-p.events)
	}
}

func TestWarningPublisher(t *testing.T) {
	closed := func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} }
	other := func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalIPs, s.CreationTimestamp = v1.ServiceTypeClusterIP, []string{"203.0.113.4"}, metav1.Unix(200, 0)
	}
	client := fake.NewClientset(ccmtest.WarnedService("plain", nil), ccmtest.WarnedService("web", func(s *v1.Service) {
		closed(s)
		s.Spec.ExternalIPs = []string{"203.0.113.4"}
	}))
	p, stop := startPublisher(t, client)
	p.event("Warning FamilyClosed ")
	p.condition("web", "FamilyClosed")

	// Each warning is published once: a new one has an Event, an earlier one has none.
	p.update(ccmtest.WarnedService("web", func(s *v1.Service) {
		closed(s)
		s.Spec.ExternalIPs = []string{"203.0.113.4"}
		s.Annotations[v1alpha1.AnnotationScheduler] = "best"
	}))
	p.event("Warning UnknownScheduler ")

	// An unmanaged Service gets an Event and nothing else.
	if _, err := client.CoreV1().Services("default").Create(p.ctx, ccmtest.WarnedService("other", other), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.event("Warning PortConflict TCP 203.0.113.4:80 belongs to Service default/web")

	// Nothing is left to report: the condition is removed, and the other Service has the endpoint alone.
	p.update(ccmtest.WarnedService("web", nil))
	p.condition("web", "")
	p.update(ccmtest.WarnedService("web", closed))
	p.event("Warning FamilyClosed ")
	p.condition("web", "FamilyClosed")
	stop()
	if n := Patches(client); n != 4 {
		t.Errorf("%d writes, want 4: %v", n, client.Actions())
	}

	// The next leader finds the warning in the condition.
	client.ClearActions()
	p, stop = startPublisher(t, client)
	p.update(ccmtest.WarnedService("plain", closed))
	p.event("Warning FamilyClosed ")
	p.condition("plain", "FamilyClosed")
	stop()
	select {
	case more := <-p.events:
		t.Errorf("one more Event: %q", more)
	default:
	}
	if n := Patches(client); n != 1 {
		t.Errorf("%d writes of the next leader, want 1: %v", n, client.Actions())
	}
	for _, action := range client.Actions() {
		if patch, ok := action.(ktesting.PatchAction); ok && patch.GetName() == "other" {
			t.Errorf("wrote to a Service that is not ours: %s", patch.GetPatch())
		}
	}
}

// TestRefusedEndpoint: an endpoint at a LoadBalancer address is reported whichever came first, until the slice or the
// address changes. The next leader does not repeat the Event.
func TestRefusedEndpoint(t *testing.T) {
	has := func(ips ...string) func(*v1.Service) {
		return func(s *v1.Service) {
			for _, ip := range ips {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
			}
		}
	}
	slice := func(name, manager string, addrs ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: manager}}}
		for _, addr := range addrs {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
		}
		return s
	}
	client := fake.NewClientset(
		ccmtest.WarnedService("alias", nil), slice("alias", "", "203.0.113.5", "198.51.100.1", "203.0.113.4"),
		ccmtest.WarnedService("pods", nil), slice("pods", "endpointslice-controller.k8s.io", "203.0.113.4"),
		ccmtest.WarnedService("theirs", func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeClusterIP }), slice("theirs", "", "203.0.113.4"),
		ccmtest.WarnedService("web", has("203.0.113.4")), ccmtest.WarnedService("web2", nil), ccmtest.WarnedService("late", nil),
	)
	const (
		of   = ": it is the LoadBalancer address of Service default/%s. Replace it with the addresses of that Service's Pods"
		text = "Warning EndpointRefused EndpointSlice %s-1: connections to endpoint %s are refused" + of
	)
	refused := func(name, addr, owner string) string { return fmt.Sprintf(text, name, addr, owner) }
	p, stop := startPublisher(t, client)
	p.event(refused("alias", "203.0.113.4", "web"))
	p.condition("alias", "EndpointRefused")
	p.update(ccmtest.WarnedService("web2", has("203.0.113.5")))
	p.event(refused("alias", "203.0.113.5", "web2"))
	mirrored := slice("late", "endpointslicemirroring-controller.k8s.io", "203.0.113.5")
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(p.ctx, mirrored, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.event(refused("late", "203.0.113.5", "web2"))
	p.condition("late", "EndpointRefused")
	stop()

	client.ClearActions()
	p, stop = startPublisher(t, client)
	defer stop()
	p.update(ccmtest.WarnedService("web2", nil))
	p.condition("late", "")
	if _, err := client.DiscoveryV1().EndpointSlices("default").Update(p.ctx, slice("alias", "", "198.51.100.1"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.condition("alias", "")
	if len(p.events) > 0 {
		t.Errorf("one more Event: %q", <-p.events)
	}
	for _, name := range []string{"pods", "theirs", "web"} {
		p.condition(name, "")
	}
	if n := Patches(client); n > 3 {
		t.Errorf("%d writes of the next leader, want 3 at most: %v", n, client.Actions())
	}
}

// TestWarningsAreBounded: thousands of errors in a Service produce a condition of a few lines. Not every pair of
// external IP and port is expanded.
func TestWarningsAreBounded(t *testing.T) {
	svc := ccmtest.ServiceFor("s1")
	for i := range 2000 {
		svc.Annotations[fmt.Sprintf("metallb.io/a%d", i)] = ""
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String())
		svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{Port: int32(i + 100)})
	}
	all := abridged(annotationWarnings(svc))
	if len(all) != warningsPerReason+1 || all[warningsPerReason].message != "1990 more of reason UnknownAnnotation" {
		t.Errorf("%d warnings, the last one is %+v", len(all), all[len(all)-1])
	}
	svc.Spec.Ports = svc.Spec.Ports[:300]
	if got := endpointsOf(svc, true, nil); len(got) != 900 {
		t.Errorf("%d endpoints, want those of three addresses", len(got))
	}
}
