package allocation

import (
	"context"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Watch feeds the ledger with namespaces and with what Services show, and repairs Services. It returns the sync
// functions.
func (c *Controllers) Watch(ctx context.Context, core informers.SharedInformerFactory) ([]cache.InformerSynced, error) {
	namespaces, err := core.Core().V1().Namespaces().Informer().AddEventHandler(c.Ledger.namespaceHandler())
	if err != nil {
		return nil, fmt.Errorf("watching Namespaces: %w", err)
	}
	services, err := c.services.Informer().AddEventHandler(c.divergence.handler(ctx))
	if err != nil {
		return nil, fmt.Errorf("watching Services: %w", err)
	}
	return []cache.InformerSynced{namespaces.HasSynced, services.HasSynced}, nil
}

// namespaceHandler passes on the labels of namespaces, for the pools' namespace selectors.
func (l *Ledger) namespaceHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { l.setNamespace(o.(*v1.Namespace).Name, o.(*v1.Namespace).Labels) },
		UpdateFunc: func(before, after any) {
			if ns := after.(*v1.Namespace); !maps.Equal(before.(*v1.Namespace).Labels, ns.Labels) {
				l.setNamespace(ns.Name, ns.Labels)
			}
		},
		DeleteFunc: func(o any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				l.deleteNamespace(key)
			}
		},
	}
}
