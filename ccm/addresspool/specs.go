package addresspool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Allocator is what the pools are passed to.
type Allocator interface {
	// SetPools replaces the pools.
	SetPools(all []pools.Pool)
	// Restore continues recorded cool-downs.
	Restore(all []pools.CoolDown)
	// Adopt records what the Services hold. It is called once, after the first SetPools and Restore.
	Adopt(services []v1.Service)
	// Expire ends the cool-downs that are over. NextExpiry returns when the first of the others ends; false: there is
	// none.
	Expire()
	NextExpiry() (time.Time, bool)
}

// Services are the controllers of Services.
type Services interface {
	// List reads the Services that hold something from the API server.
	List(ctx context.Context) ([]v1.Service, error)
	// Start begins to serve Services, once all they hold is adopted.
	Start(ctx context.Context)
	// Revisit wakes the Services that a change of pools may concern.
	Revisit()
	// Unconfirmed returns the adopted Services that the cache lacks. ReleaseUnconfirmed releases those of them that are
	// deleted, and returns the others.
	Unconfirmed(listed []v1.Service) []*v1.Service
	ReleaseUnconfirmed(ctx context.Context, unconfirmed []*v1.Service) []*v1.Service
}

// Specs passes the operator's pools to the ledger, and triggers the adoption of recorded addresses once after the
// start.
type Specs struct {
	Log      *slog.Logger
	Ledger   Allocator
	Reader   client.Reader
	Services Services
	changed  func() // what the status of pools shows changed
	Synced   []cache.InformerSynced
	Liveness *loop.Liveness
	Trigger  chan struct{}
	Change   chan struct{} // the ledger changed: the first cool-down may end earlier

	mu sync.Mutex
	// good is the last valid configuration of each pool, bad the error of the current one.
	good map[string]goodPool
	bad  map[string]string
}

// goodPool is a valid configuration.
type goodPool struct {
	uid  types.UID
	spec v1alpha1.IPAddressPoolSpec
	pool pools.Pool
}

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

// Run returns when ctx ends.
func (p *Specs) Run(ctx context.Context) error {
	if !loop.WaitSynced(ctx, p.Log, p.Synced) {
		return nil
	}
	if err := p.apply(ctx); err != nil {
		return err
	}
	if err := p.restore(ctx); err != nil {
		return err
	}
	services, ok := p.recorded(ctx)
	if !ok {
		return nil
	}
	p.Ledger.Adopt(services)
	unconfirmed := p.Services.Unconfirmed(services)
	services = nil
	p.Services.Start(ctx)
	p.changed()

	coolDown := time.NewTimer(0)
	defer coolDown.Stop()
	tick := time.NewTicker(loop.TickEvery)
	defer tick.Stop()
	for {
		p.Liveness.Tick("pools")
		select {
		case <-ctx.Done():
			return nil
		case <-coolDown.C:
			p.Ledger.Expire()
		case <-p.Change:
		case <-tick.C: // also checks that the ledger's lock is available, since it is taken below
			unconfirmed = p.Services.ReleaseUnconfirmed(ctx, unconfirmed)
		case <-p.Trigger:
			if err := p.apply(ctx); err != nil {
				return err
			}
			p.Services.Revisit()
		}
		if at, ok := p.Ledger.NextExpiry(); ok {
			coolDown.Reset(time.Until(at))
		}
	}
}

// restore passes the cool-downs recorded in the pools' status to the ledger.
func (p *Specs) restore(ctx context.Context) error {
	var list v1alpha1.IPAddressPoolList
	if err := p.Reader.List(ctx, &list); err != nil {
		return fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	for i := range list.Items {
		all, wrong := coolDownsIn(&list.Items[i])
		for _, err := range wrong {
			p.Log.Warn("recorded cool-down ignored", "pool", list.Items[i].Name, "error", err)
		}
		p.Ledger.Restore(all)
	}
	return nil
}

// recorded lists the Services with their addresses, and retries without limit. False: ctx ended.
func (p *Specs) recorded(ctx context.Context) ([]v1.Service, bool) {
	retry := loop.NewBackoff()
	for {
		services, err := p.Services.List(ctx)
		if err == nil {
			return services, true
		}
		wait := retry.Step()
		p.Log.Warn("no address is assigned before recorded ones are adopted", "error", err, "retryIn", wait)
		if !loop.Sleep(ctx, wait) {
			return nil, false
		}
	}
}

// apply passes all pools to the ledger. An invalid pool counts with its last valid configuration, also after a restart:
// its status keeps that. Without one the pool assigns nothing, and its holders keep what they have.
func (p *Specs) apply(ctx context.Context) error {
	var list v1alpha1.IPAddressPoolList
	if err := p.Reader.List(ctx, &list); err != nil {
		return fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	p.mu.Lock()
	good, bad := map[string]goodPool{}, map[string]string{}
	all := make([]pools.Pool, 0, len(list.Items))
	for i := range list.Items {
		obj := &list.Items[i]
		now, err := readPool(obj, obj.Spec)
		if err != nil {
			bad[obj.Name] = err.Error()
			if p.bad[obj.Name] != err.Error() {
				p.Log.Warn("pool is invalid", "pool", obj.Name, "error", err)
			}
			var known bool
			if now, known = p.lastGood(obj); !known {
				all = append(all, pools.Pool{Name: obj.Name, Created: obj.CreationTimestamp.Time, Unreadable: true})
				continue
			}
		}
		good[obj.Name] = now
		all = append(all, now.pool)
	}
	p.good, p.bad = good, bad
	p.mu.Unlock()
	p.Ledger.SetPools(all)
	return nil
}

// readPool parses the object as if it had the spec.
func readPool(obj *v1alpha1.IPAddressPool, spec v1alpha1.IPAddressPoolSpec) (goodPool, error) {
	pool, err := v1alpha1.ParsePool(&v1alpha1.IPAddressPool{ObjectMeta: obj.ObjectMeta, Spec: spec})
	return goodPool{uid: obj.UID, spec: spec, pool: pool}, err
}

// lastGood returns the object's last valid configuration, from this process or from an earlier leader. The caller holds
// the lock.
func (p *Specs) lastGood(obj *v1alpha1.IPAddressPool) (goodPool, bool) {
	if last, ok := p.good[obj.Name]; ok && last.uid == obj.UID {
		return last, true
	}
	if obj.Status.LastGood == "" {
		return goodPool{}, false
	}
	var spec v1alpha1.IPAddressPoolSpec
	err := json.Unmarshal([]byte(obj.Status.LastGood), &spec)
	var last goodPool
	if err == nil {
		last, err = readPool(obj, spec)
	}
	if err != nil {
		p.Log.Warn("last good configuration of a pool cannot be parsed", "pool", obj.Name, "field", "status.lastGood", "error", err)
	}
	return last, err == nil
}

// problem returns why the pool is invalid, and the configuration in force instead, as JSON. Empty: it is valid; none.
func (p *Specs) problem(name string) (why, instead string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	why = p.bad[name]
	last, known := p.good[name]
	if why == "" || !known {
		return why, ""
	}
	spec, err := json.Marshal(last.spec)
	if err != nil {
		return why, "" // never: it was parsed from JSON
	}
	return why, string(spec)
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
