package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
)

// SetForwarding changes the Service's forwarding, for the next faults, and waits until the nodes forward so.
func (b *Bench) SetForwarding(ctx context.Context, forwarding string) error {
	b.cfg.Mode = forwarding
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationForwarding, forwarding)
	_, err := b.Cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Patch(ctx, service, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	return b.WaitForwarding(ctx)
}

// WaitForwarding waits until each node has the slots of each address, or, unless forwarding is direct, none has slots
// left.
func (b *Bench) WaitForwarding(ctx context.Context) error {
	return b.Cluster.Eventually(ctx, patience, "each node has forwarding "+b.cfg.Mode, func(ctx context.Context) error {
		for _, n := range b.Cluster.Nodes[:hosts] {
			if err := b.forwards(ctx, n); err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
		}
		return nil
	})
}

// forwards returns why a node does not forward so yet.
func (b *Bench) forwards(ctx context.Context, n *lab.Node) error {
	if b.cfg.Mode != Direct {
		tables, err := n.Exec(ctx, "nft", "list", "tables")
		if err == nil && strings.Contains(tables, slotsTable) {
			err = fmt.Errorf("it has a table %s", slotsTable)
		}
		return err
	}
	for _, t := range b.targets {
		family := "ip"
		if t.Addr().Is6() {
			family = "ip6"
		}
		table, err := n.Exec(ctx, "nft", "list", "table", family, slotsTable)
		if err == nil && !strings.Contains(table, " "+t.Addr().String()+" ") {
			err = fmt.Errorf("table %s %s has no %v", family, slotsTable, t.Addr())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// owner returns the node that answered for both addresses in the last span; of a routed address there is none.
func (b *Bench) owner(span time.Duration) (*lab.Node, error) {
	now := time.Now()
	owners := map[string]bool{}
	for _, t := range b.targets {
		owners[b.watcher.Owner(t.Addr(), now, span)] = true
	}
	for _, n := range b.Cluster.Nodes {
		if len(owners) == 1 && owners[n.MAC()] {
			return n, nil
		}
	}
	return nil, fmt.Errorf("the addresses are answered by %q", slices.Collect(maps.Keys(owners)))
}

// moved waits until another node answers for the addresses.
func (b *Bench) moved(ctx context.Context, from *lab.Node) error {
	return b.Cluster.Eventually(ctx, patience, "another node answers than "+from.Name, func(context.Context) error {
		n, err := b.owner(calm / 2)
		if err == nil && n == from {
			err = errors.New("it answers")
		}
		return err
	})
}

// endpoints waits until each EndpointSlice lists so many ready endpoints.
func (b *Bench) endpoints(ctx context.Context, want int) error {
	what := fmt.Sprintf("%d endpoints are ready", want)
	return b.Cluster.Eventually(ctx, 2*patience, what, func(ctx context.Context) error {
		all, err := b.Cluster.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + service,
		})
		if err != nil {
			return err
		}
		if len(all.Items) != len(b.targets) {
			return fmt.Errorf("%d slices", len(all.Items))
		}
		for _, s := range all.Items {
			n := 0
			for _, e := range s.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					n++
				}
			}
			if n != want {
				return fmt.Errorf("%s has %d", s.Name, n)
			}
		}
		return nil
	})
}

// settled waits until every node that takes part is ready, and so are its Pods, and the address has one owner, or the
// router a route through each node.
func (b *Bench) settled(ctx context.Context) (*lab.Node, error) {
	running := 0
	for name, n := range b.on {
		if !b.up[n] {
			continue
		}
		running++
		if _, err := b.Cluster.WaitPod(ctx, metav1.NamespaceDefault, name, true); err != nil {
			return nil, err
		}
	}
	for n := range b.up {
		if err := n.WaitReady(ctx, patience, corev1.ConditionTrue); err != nil {
			return nil, err
		}
		if err := b.ready(ctx, n); err != nil {
			return nil, err
		}
	}
	if err := b.endpoints(ctx, running); err != nil {
		return nil, err
	}
	if b.routed != nil {
		return nil, b.hops(ctx)
	}
	var owner *lab.Node
	err := b.Cluster.Eventually(ctx, 2*patience, "the addresses have one owner", func(context.Context) (err error) {
		owner, err = b.owner(calm)
		return err
	})
	return owner, err
}

func (b *Bench) ready(ctx context.Context, n *lab.Node) error {
	return b.Cluster.Eventually(ctx, 2*patience, "the speaker of "+n.Name+" is ready", func(ctx context.Context) error {
		_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
		return err
	})
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
