package allocation

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/watch"
)

// NodeHandler passes on changes of node addresses, but not heartbeats.
func (l *Ledger) NodeHandler() cache.ResourceEventHandler {
	set := func(n *v1.Node) {
		addrs := watch.NodeAddresses(n)
		l.change(func() { l.alloc.SetNode(n.Name, addrs) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { set(o.(*v1.Node)) },
		UpdateFunc: func(before, after any) {
			if n := after.(*v1.Node); !slices.Equal(watch.NodeAddresses(before.(*v1.Node)), watch.NodeAddresses(n)) {
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
