package installed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
)

// TestPodsReplaced: as in an upgrade, the Pods of a DaemonSet are replaced node by node while clients connect through
// BIRD and FRR. Replaced speakers change no session. A replaced ironlb-bgpd restarts its node's sessions gracefully. No
// route changes and no connection fails. The peers are as in the README, with BFD; the routers as in
// docs/tasks/configure-bgp.md.
func TestPodsReplaced(t *testing.T) {
	cluster.Need(t)
	serve(t)
	routers := startRouters(t)
	service := announce(t, routers)
	for _, test := range []struct {
		daemonSet string
		replace   func(*testing.T, []*peer, *lab.Node)
	}{
		{"ironlb-speaker", replaceSpeaker},
		{"ironlb-bgpd", replaceBGP},
	} {
		t.Run(test.daemonSet, func(t *testing.T) {
			cluster.Need(t)
			var on []*lab.Machine
			var unchanged []func()
			for _, r := range routers {
				r.routed(t, service.Addr(), cluster.Nodes...)
				unchanged = append(unchanged, r.watch(t, service.Addr()))
				on = append(on, r.client)
			}
			clients := startClients(t, service, on...)
			for _, n := range cluster.Nodes {
				test.replace(t, routers, n)
			}
			for _, c := range clients {
				connections, stream := c.stop(t)
				t.Logf("%s: %s; the open connection is %s", c.name, connections, stream)
				if connections.Failed > 0 || stream != kept {
					t.Errorf("%s: %d of %d connections failed; the open connection is %s",
						c.name, connections.Failed, connections.Sent, stream)
				}
			}
			for _, check := range unchanged {
				check()
			}
		})
	}
}

// replaceSpeaker replaces the speaker's Pod on a node: every session stays, and no node sends an UPDATE.
func replaceSpeaker(t *testing.T, routers []*peer, n *lab.Node) {
	t.Helper()
	before := allEstablished(t, routers)
	successor(t, n, deleteOne(t, n, "ironlb-speaker"))
	now := allEstablished(t, routers)
	for i, r := range routers {
		for _, other := range cluster.Nodes {
			r.same(t, other, before[i], now[i])
			if is, was := now[i].bgp[other.Name].Updates, before[i].bgp[other.Name].Updates; is != was {
				t.Errorf("%s has %d updates from %s, had %d", r.name, is, other.Name, was)
			}
		}
	}
}

// replaceBGP replaces the Pod of ironlb-bgpd on a node. The routers keep the node's path as stale until the new Pod has
// sent it. The sessions of the other nodes stay.
func replaceBGP(t *testing.T, routers []*peer, n *lab.Node) {
	t.Helper()
	before := allEstablished(t, routers)
	began := time.Now()
	old := deleteOne(t, n, "ironlb-bgpd")
	stale(t, routers, n)
	for i, r := range routers {
		r.renewed(t, n, before[i])
	}
	t.Logf("%s: new sessions %s after its Pod was deleted", n.Name, time.Since(began).Round(100*time.Millisecond))
	successor(t, n, old)
	now := allEstablished(t, routers)
	for i, r := range routers {
		for _, other := range cluster.Nodes {
			if other != n {
				r.same(t, other, before[i], now[i])
			}
		}
	}
}

// stale waits until each router has kept the path of a node as stale.
func stale(t *testing.T, routers []*peer, n *lab.Node) {
	t.Helper()
	seen := map[*peer]bool{}
	cluster.Await(t, time.Minute, "each router to keep the path of "+n.Name+" as stale", func(ctx context.Context) error {
		var errs []error
		for _, r := range routers {
			path, err := r.path(ctx, n)
			if seen[r] = seen[r] || path.Stale; !seen[r] {
				errs = append(errs, err, fmt.Errorf("%s has %+v", r.name, path))
			}
		}
		return errors.Join(errs...)
	})
}

// renewed waits until the router has a new session with a node, and a path that is not stale.
func (r *peer) renewed(t *testing.T, n *lab.Node, before sessions) {
	t.Helper()
	cluster.Await(t, time.Minute, "a new session of "+r.name+" with "+n.Name, func(ctx context.Context) error {
		all, err := r.Sessions(ctx)
		if err != nil {
			return err
		}
		if s := all[n.Name]; !s.Established || s.Same(before.bgp[n.Name]) {
			return fmt.Errorf("it is %s since %v", s.State, s.Since)
		}
		path, err := r.path(ctx, n)
		if path.Stale {
			err = errors.New("the path is stale")
		}
		return err
	})
}

// deleteOne deletes the Pod of a DaemonSet on a node and returns it.
func deleteOne(t *testing.T, n *lab.Node, daemonSet string) corev1.Pod {
	t.Helper()
	pods, err := podsOn(t.Context(), n, daemonSet)
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d Pods of %s on %s, want 1: %v", len(pods), daemonSet, n.Name, err)
	}
	system := cluster.Kube.CoreV1().Pods(lab.SystemNamespace)
	if err := system.Delete(t.Context(), pods[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return pods[0]
}

// successor waits until another Pod of the DaemonSet of old is Ready on the node.
func successor(t *testing.T, n *lab.Node, old corev1.Pod) {
	t.Helper()
	daemonSet := old.Labels["app.kubernetes.io/name"]
	cluster.Await(t, 2*time.Minute, "the next Pod of "+daemonSet+" on "+n.Name, func(ctx context.Context) error {
		pods, err := podsOn(ctx, n, daemonSet)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID != old.UID && ready(p) }) {
			return fmt.Errorf("%d Pods, none of them is new and Ready", len(pods))
		}
		return nil
	})
}

func podsOn(ctx context.Context, n *lab.Node, daemonSet string) ([]corev1.Pod, error) {
	list, err := cluster.Kube.CoreV1().Pods(lab.SystemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + daemonSet, FieldSelector: "spec.nodeName=" + n.Name})
	return list.Items, err
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
