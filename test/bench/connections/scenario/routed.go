package scenario

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

const (
	nodeASN   = 65001
	routerASN = 65002
)

// routed is the lab's router with BIRD, and the client behind it.
type routed struct {
	router.Router
	config  router.Config
	through []*lab.Node // next hops that it is to use
}

const peerObject = `
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: router}
spec: {myASN: %d, peerASN: %d, peerAddress: %q, connectTime: 1s}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: router6}
spec: {myASN: %[1]d, peerASN: %[2]d, peerAddress: %[4]q, connectTime: 1s}
`

// startRouter starts BIRD, which routes each packet by the hash of its addresses and ports.
func (b *Bench) startRouter(ctx context.Context) (*routed, error) {
	on := b.Cluster.Router
	_, err := on.Exec(ctx, "sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1", "net.ipv6.fib_multipath_hash_policy=1")
	if err != nil {
		return nil, err
	}
	r := &routed{config: router.Config{ASN: routerASN, ID: on.Addr}, through: b.Cluster.Nodes[:hosts]}
	for _, n := range b.Cluster.Nodes[:hosts] {
		r.config.Neighbors = append(r.config.Neighbors,
			router.Neighbor{Name: n.Name, Address: n.Addr, ASN: nodeASN},
			router.Neighbor{Name: n.Name + "v6", Address: n.Addr6, ASN: nodeASN})
	}
	place := router.Place{Host: on.Host(), Namespace: "/run/netns/" + on.Namespace, Logs: b.Cluster.Dir}
	bird, err := router.StartBIRD(ctx, place, r.config)
	if err != nil {
		return nil, err
	}
	r.Router = bird
	return r, b.Cluster.ApplyYAML(ctx, fmt.Sprintf(peerObject, nodeASN, routerASN, on.Addr, on.Addr6))
}

// dropHop ends the router's sessions with a node, which continues to run, and waits until its routes do not lead there.
func (b *Bench) dropHop(ctx context.Context, n *lab.Node) error {
	c := b.routed.config
	c.Neighbors = slices.DeleteFunc(slices.Clone(c.Neighbors), func(p router.Neighbor) bool {
		return p.Address == n.Addr || p.Address == n.Addr6
	})
	b.routed.through = slices.DeleteFunc(slices.Clone(b.routed.through), func(other *lab.Node) bool { return other == n })
	if err := b.routed.Configure(ctx, c); err != nil {
		return err
	}
	return b.hops(ctx)
}

// allHops reverts dropHop.
func (b *Bench) allHops(ctx context.Context) error {
	b.routed.through = b.Cluster.Nodes[:hosts]
	if err := b.routed.Configure(ctx, b.routed.config); err != nil {
		return err
	}
	return b.hops(ctx)
}

// hops waits until the router's kernel routes each address through exactly the nodes that it is to use.
func (b *Bench) hops(ctx context.Context) error {
	for _, t := range b.targets {
		family, want := 4, []netip.Addr{}
		if t.Addr().Is6() {
			family = 6
		}
		for _, n := range b.routed.through {
			if family == 4 {
				want = append(want, n.Addr)
			} else {
				want = append(want, n.Addr6)
			}
		}
		slices.SortFunc(want, netip.Addr.Compare)
		what := fmt.Sprintf("the router has %v by way of %v", t.Addr(), want)
		err := b.Cluster.Eventually(ctx, patience, what, func(ctx context.Context) error {
			routes, err := b.routed.Routes(ctx, family)
			if err != nil {
				return err
			}
			var have []netip.Addr
			for _, r := range routes {
				if r.Prefix == netip.PrefixFrom(t.Addr(), t.Addr().BitLen()) {
					have = append(have, r.Via...)
				}
			}
			if slices.SortFunc(have, netip.Addr.Compare); !slices.Equal(have, want) {
				return fmt.Errorf("it has %v", have)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
