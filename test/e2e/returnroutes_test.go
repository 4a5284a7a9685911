package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
)

// TestReturnRoutes: the nodes' default route leads to another network than the pool's. A client behind the router of
// the pool's network is answered only with returnRoutes. A node without the route is not forwarded to directly. Without
// the field all state is removed.
func TestReturnRoutes(t *testing.T) {
	for _, n := range cluster.Nodes {
		elsewhere(t, n)
	}
	pod(t, "back-1", "back", cluster.Node(1))
	service(t, "back")
	http := netip.AddrPortFrom(address(t, "back"), httpPort)
	reachable(t, cluster.Client, http)
	s, err := cluster.Remote.Ask(t.Context(), lab.Probe{Network: "tcp", Target: http, Count: 1, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if s.Failed != 1 {
		t.Fatalf("without return routes: %s, want a time-out", s)
	}

	returnRoutes(t, v1alpha1.ReturnRoute{Gateway: cluster.Router.Addr.String()})
	reachable(t, cluster.Remote, http)
	ask(t, cluster.Remote, "udp", netip.AddrPortFrom(http.Addr(), udpPort), 5)
	inEffect(t, "with the route", func(r v1alpha1.ReturnRouteStatus) bool {
		return r.InEffect && r.Gateway == cluster.Router.Addr.String()
	})

	for _, n := range cluster.Nodes {
		if state, err := returnState(t.Context(), n); err != nil || state == "" {
			t.Errorf("%s has no state of return routes, error %v", n.Name, err)
		}
	}

	forward(t, "back", "direct")
	t.Run("direct", func(t *testing.T) {
		cluster.Await(t, patience, "the Pod sees the client", func(ctx context.Context) error {
			s, err := cluster.Remote.Ask(ctx, lab.Probe{Network: "tcp", Target: http, Count: 1, Timeout: 3 * time.Second})
			if err == nil && s.Clients[cluster.Remote.Addr.String()] != 1 {
				err = fmt.Errorf("%s, clients %v", s, s.Clients)
			}
			return err
		})
		ask(t, cluster.Remote, "tcp", http, 20)
		ask(t, cluster.Client, "tcp", http, 20)
	})
	t.Run("missing", func(t *testing.T) {
		returnRoutes(t, v1alpha1.ReturnRoute{Gateway: "198.18.0.1"})
		inEffect(t, "without a route", func(r v1alpha1.ReturnRouteStatus) bool { return !r.InEffect && r.Message != "" })
		notDirect(t, "back", http.Addr(), "NoReturnRoute")
		reachable(t, cluster.Client, http)
		returnRoutes(t, v1alpha1.ReturnRoute{Gateway: cluster.Router.Addr.String()})
		reachable(t, cluster.Remote, http)
		fallback(t, http.Addr(), "")
	})
	returnRoutes(t)
	for _, n := range cluster.Nodes {
		cluster.Await(t, patience, n.Name+" has no state of return routes", func(ctx context.Context) error {
			state, err := returnState(ctx, n)
			if err == nil && state != "" {
				err = errors.New(state)
			}
			return err
		})
	}
}

// elsewhere makes the node's default route lead to the network of the API server, until the end of the test.
func elsewhere(t testing.TB, n *lab.Node) {
	t.Helper()
	route := func(ctx context.Context, to ...string) error {
		_, err := n.Exec(ctx, append([]string{"ip", "route", "replace", "default"}, to...)...)
		return err
	}
	t.Cleanup(func() {
		if err := route(context.WithoutCancel(t.Context()), "via", cluster.Router.Addr.String()); err != nil {
			t.Error(err)
		}
	})
	if err := route(t.Context(), "dev", "api0"); err != nil {
		t.Fatal(err)
	}
}

// returnRoutes sets those of the pool, none at the end of the test.
func returnRoutes(t testing.TB, routes ...v1alpha1.ReturnRoute) {
	t.Helper()
	set := func(ctx context.Context, routes []v1alpha1.ReturnRoute) {
		pool := &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan"}}
		if err := cluster.Objects.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			t.Fatal(err)
		}
		before := client.MergeFrom(pool.DeepCopy())
		pool.Spec.ReturnRoutes = routes
		if err := cluster.Objects.Patch(ctx, pool, before); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { set(context.WithoutCancel(t.Context()), nil) })
	set(t.Context(), routes)
}

// inEffect waits until the return routes in the status of each node satisfy ok.
func inEffect(t testing.TB, what string, ok func(v1alpha1.ReturnRouteStatus) bool) {
	t.Helper()
	for _, n := range cluster.Nodes {
		cluster.Await(t, patience, n.Name+" is "+what, func(ctx context.Context) error {
			var s v1alpha1.SpeakerStatus
			if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: n.Name}, &s); err != nil {
				return err
			}
			if len(s.Status.ReturnRoutes) != 1 || !ok(s.Status.ReturnRoutes[0]) {
				return fmt.Errorf("its return routes are %+v", s.Status.ReturnRoutes)
			}
			return nil
		})
	}
}

// forward sets the Service's forwarding.
func forward(t testing.TB, name, forwarding string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationForwarding, forwarding)
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	if _, err := services.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// notDirect waits for the condition of the VirtualIP and the Event of the Service that name the reason.
func notDirect(t testing.TB, name string, addr netip.Addr, reason string) {
	t.Helper()
	fallback(t, addr, reason)
	cluster.Await(t, patience, "the Service has an Event for "+reason, func(ctx context.Context) error {
		events, err := cluster.Kube.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + name + ",reason=" + reason,
		})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, addr.String()) {
				return nil
			}
		}
		return fmt.Errorf("there are %+v", events.Items)
	})
}

// fallback waits until the condition NotDirect of the VirtualIP has the reason; "" until there is none.
func fallback(t testing.TB, addr netip.Addr, reason string) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("the reason of condition NotDirect is %q", reason), func(ctx context.Context) error {
		var vip v1alpha1.VirtualIP
		if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: addr.String()}, &vip); err != nil {
			return err
		}
		got := ""
		c := meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionNotDirect)
		if c != nil && c.Status == metav1.ConditionTrue {
			got = c.Reason
		}
		if got != reason {
			return fmt.Errorf("its conditions are %+v", vip.Status.Conditions)
		}
		return nil
	})
}

// returnState returns the node's rules and routes with the protocol number of return routes, and the tables
// of nftables.
func returnState(ctx context.Context, n *lab.Node) (state string, err error) {
	all, err := n.Exec(ctx, "sh", "-ec",
		"ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft list tables")
	for line := range strings.Lines(all) {
		ours := strings.Contains(line, "proto 73") && !strings.Contains(line, "table local") // there are the virtual addresses
		if ours || strings.Contains(line, "ironlb-return") {
			state += line
		}
	}
	return state, err
}
