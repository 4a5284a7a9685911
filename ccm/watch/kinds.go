package watch

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kinds is the cache of the kinds of IronLB's API group.
type Kinds struct{ ctrlcache.Cache }

// Watch registers the handler for changes of the kind. It returns the sync function of the handler.
func (k Kinds) Watch(ctx context.Context, kind client.Object, handler cache.ResourceEventHandler) (cache.InformerSynced, error) {
	inf, err := k.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	reg, err := inf.AddEventHandler(handler)
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	return reg.HasSynced, nil
}

// WatchAll registers the handler for changes of the kinds. It returns the sync functions.
func (k Kinds) WatchAll(ctx context.Context, handler cache.ResourceEventHandler, all ...client.Object) ([]cache.InformerSynced, error) {
	var synced []cache.InformerSynced
	for _, kind := range all {
		is, err := k.Watch(ctx, kind, handler)
		if err != nil {
			return nil, err
		}
		synced = append(synced, is)
	}
	return synced, nil
}
