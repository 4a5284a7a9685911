package ccm

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// watchNodes updates the ledger's addresses of nodes, which no Service may get.
func (c *Cloud) watchNodes() (cache.InformerSynced, error) {
	reg, err := c.core.Core().V1().Nodes().Informer().AddEventHandler(c.ledger.nodeHandler())
	if err != nil {
		return nil, fmt.Errorf("watching Nodes: %w", err)
	}
	return reg.HasSynced, nil
}

// nodeHandler passes on changes of node addresses, but not heartbeats.
func (l *ledger) nodeHandler() cache.ResourceEventHandler {
	set := func(n *v1.Node) {
		addrs := nodeAddresses(n)
		l.change(func() { l.alloc.SetNode(n.Name, addrs) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { set(o.(*v1.Node)) },
		UpdateFunc: func(before, after any) {
			if n := after.(*v1.Node); !slices.Equal(nodeAddresses(before.(*v1.Node)), nodeAddresses(n)) {
				set(n)
			}
		},
		DeleteFunc: func(o any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				l.change(func() { l.alloc.DeleteNode(name) })
			}
		},
	}
}

// nodeAddresses returns the addresses on which the node is reachable.
func nodeAddresses(n *v1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type != v1.NodeInternalIP && a.Type != v1.NodeExternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, addr.Unmap().WithZone(""))
		}
	}
	return out
}
