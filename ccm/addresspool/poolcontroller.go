package addresspool

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Config is what the controller of pools needs.
type Config struct {
	Log      *slog.Logger
	Events   record.EventRecorder
	Client   client.Client
	Services Services
	Liveness *loop.Liveness
	// Synced are the caches that the first decision needs, besides that of pools.
	Synced []cache.InformerSynced
}

// New returns the two tasks of the controller of pools, which watch the pools. changed reports a change of what
// the status of pools shows.
func New(ctx context.Context, c Config, ledger interface {
	Allocator
	statusSource
}, kinds watch.Kinds) (specs *Specs, status *Status, changed func(), err error) {
	specs = &Specs{
		Log: c.Log, Ledger: ledger, Reader: c.Client, Services: c.Services, Liveness: c.Liveness,
		Trigger: make(chan struct{}, 1), Change: make(chan struct{}, 1),
	}
	status = &Status{
		Log: c.Log, Ledger: ledger, Specs: specs, Client: c.Client, Liveness: c.Liveness,
		Trigger: make(chan struct{}, 1), Events: c.Events, Published: map[types.UID]string{},
	}
	specs.changed = func() {
		loop.Trigger(status.Trigger)
		loop.Trigger(specs.Change)
	}
	changedSpec := func() {
		loop.Trigger(specs.Trigger)
		loop.Trigger(status.Trigger)
	}
	synced, err := kinds.Watch(ctx, &v1alpha1.IPAddressPool{}, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changedSpec() },
		UpdateFunc: func(any, any) { changedSpec() },
		DeleteFunc: func(any) { changedSpec() },
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("preparing the controller of pools: %w", err)
	}
	specs.Synced = append(c.Synced, synced)
	return specs, status, specs.changed, nil
}
