package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
)

// locals returns the local addresses of a node.
func locals(t *testing.T, n *lab.Node) []string {
	t.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		text, err := n.Exec(t.Context(), "ip", family, "route", "show", "table", "local", "type", "local")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			if words := strings.Fields(line); len(words) > 1 {
				out = append(out, words[1])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// CVE-2020-8554: a Service that names another node, the router, a Pod, the network of ClusterIPs or the
// API server takes nothing from them, although the operator allows every external IP here. Its author is informed.
func TestTenantTakesNothing(t *testing.T) {
	victim, gateway := cluster.Node(2), cluster.Router
	own, err := victim.Start(t.Context(), "listener", host.Cmd{Argv: []string{cluster.Program("labpod"), "serve", "the-node-itself"}})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Kill()
	dns := service(t, "dns", ofType(corev1.ServiceTypeClusterIP))
	endpoints(t, "dns", "b1")
	pod := podMachine(t, "c1").Addr
	const allowed, allowed6 = "192.0.2.151", "2001:db8:0:1::97"
	untouched := func() {
		t.Helper()
		for _, from := range []*lab.Machine{&cluster.Node(0).Machine, podMachine(t, "a2"), cluster.Client} {
			answered(t, from, "tcp", netip.AddrPortFrom(victim.Addr, 8080), "the-node-itself")
		}
		answered(t, podMachine(t, "a2"), "tcp", internal(t, dns, httpPort), "b1")
		answered(t, &cluster.Node(0).Machine, "tcp", netip.AddrPortFrom(pod, 8080), "c1")
		for _, n := range cluster.Nodes {
			if _, err := n.Exec(t.Context(), "ping", "-c", "1", "-W", "5", gateway.Addr.String()); err != nil {
				t.Errorf("%s does not reach its router: %v", n.Name, err)
			}
		}
	}
	untouched()
	before := map[string][]string{}
	for _, n := range cluster.Nodes {
		before[n.Name] = locals(t, n)
	}
	svc := service(t, "taker", ofType(corev1.ServiceTypeClusterIP), func(svc *corev1.Service) {
		svc.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicy)
		*svc.Spec.IPFamilyPolicy = corev1.IPFamilyPolicyPreferDualStack
		svc.Spec.ExternalIPs = []string{
			victim.Addr.String(), victim.Addr6.String(), gateway.Addr.String(), gateway.Addr6.String(), pod.String(), dns.Spec.ClusterIP,
			"198.51.100.1", allowed, allowed6,
		}
	})
	endpoints(t, "taker", "a1")
	answered(t, &cluster.Node(1).Machine, "tcp", at(t, allowed, httpPort), "a1")
	for _, n := range cluster.Nodes {
		by(t, cluster.Client, netip.MustParseAddr(allowed), n)
		answered(t, cluster.Client, "tcp", at(t, allowed, httpPort), "a1")
		want := slices.Concat(before[n.Name], svc.Spec.ClusterIPs, []string{allowed, allowed6})
		slices.Sort(want)
		if got := locals(t, n); !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("%s takes in\n%v, want\n%v", n.Name, got, want)
		}
	}
	untouched()
	// Only the node itself serves the address, and only at the Service's ports.
	answered(t, cluster.Client, "tcp", netip.AddrPortFrom(victim.Addr, httpPort), "a1")
	refused(t, cluster.Client, netip.AddrPortFrom(cluster.Node(0).Addr, httpPort))

	rules := []string{"ServiceCIDR", "PodCIDR", "Gateway"}
	cluster.Await(t, 20*time.Second, "the condition of the Service names the rules", func(ctx context.Context) error {
		now, err := cluster.Kube.CoreV1().Services(svc.Namespace).Get(ctx, svc.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(now.Status.Conditions, "ironlb.io/Warnings")
		if c == nil || c.Reason != "AddressRefused" {
			return fmt.Errorf("conditions are %+v", now.Status.Conditions)
		}
		for _, rule := range rules {
			if !strings.Contains(c.Message, "(rule "+rule+")") {
				return fmt.Errorf("rule %s is not in %q", rule, c.Message)
			}
		}
		events, err := cluster.Kube.CoreV1().Events(svc.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=taker,reason=AddressRefused"})
		if err == nil && len(events.Items) < len(rules) {
			err = fmt.Errorf("%d Events, want %d", len(events.Items), len(rules))
		}
		return err
	})
	metrics, err := cluster.Node(0).Exec(t.Context(), "curl", "-fsS", "http://127.0.0.1:7950/metrics")
	if err != nil || !strings.Contains(metrics, `ironlb_speaker_refused_addresses{reason="Gateway"}`) {
		t.Errorf("no metric of refused addresses: %v", err)
	}
}
