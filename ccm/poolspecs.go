package ccm

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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// poolSpecs passes the operator's pools to the ledger, and triggers the adoption of recorded addresses once after the
// start.
type poolSpecs struct {
	log         *slog.Logger
	ledger      *ledger
	reader      client.Reader
	services    func(context.Context) ([]v1.Service, error) // from the API server
	started     func(context.Context)                       // called once adopted
	unconfirmed func([]v1.Service) []*v1.Service            // registrar.unconfirmed
	release     func(context.Context, []*v1.Service) []*v1.Service
	revisit     func() // called after a change of pools
	synced      []cache.InformerSynced
	liveness    *liveness
	trigger     chan struct{}
	change      chan struct{} // the ledger changed: the first cool-down may end earlier

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

// Run returns when ctx ends.
func (p *poolSpecs) Run(ctx context.Context) error {
	if !waitSynced(ctx, p.log, p.synced) {
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
	p.ledger.adopt(services)
	unconfirmed := p.unconfirmed(services)
	services = nil
	p.started(ctx)
	p.ledger.poolsChanged()

	coolDown := time.NewTimer(0)
	defer coolDown.Stop()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		p.liveness.tick("pools")
		select {
		case <-ctx.Done():
			return nil
		case <-coolDown.C:
			p.ledger.expire()
		case <-p.change:
		case <-tick.C: // also checks that the ledger's lock is available, since it is taken below
			unconfirmed = p.release(ctx, unconfirmed)
		case <-p.trigger:
			if err := p.apply(ctx); err != nil {
				return err
			}
			p.revisit()
		}
		if at, ok := p.ledger.nextExpiry(); ok {
			coolDown.Reset(time.Until(at))
		}
	}
}

// restore passes the cool-downs recorded in the pools' status to the ledger.
func (p *poolSpecs) restore(ctx context.Context) error {
	var list v1alpha1.IPAddressPoolList
	if err := p.reader.List(ctx, &list); err != nil {
		return fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	for i := range list.Items {
		all, wrong := coolDownsIn(&list.Items[i])
		for _, err := range wrong {
			p.log.Warn("recorded cool-down ignored", "pool", list.Items[i].Name, "error", err)
		}
		p.ledger.restore(all)
	}
	return nil
}

// recorded lists the Services with their addresses, and retries without limit. False: ctx ended.
func (p *poolSpecs) recorded(ctx context.Context) ([]v1.Service, bool) {
	retry := newBackoff()
	for {
		services, err := p.services(ctx)
		if err == nil {
			return services, true
		}
		wait := retry.Step()
		p.log.Warn("no address is assigned before recorded ones are adopted", "error", err, "retryIn", wait)
		if !sleep(ctx, wait) {
			return nil, false
		}
	}
}

// apply passes all pools to the ledger. An invalid pool counts with its last valid configuration, also after a restart:
// its status keeps that. Without one the pool assigns nothing, and its holders keep what they have.
func (p *poolSpecs) apply(ctx context.Context) error {
	var list v1alpha1.IPAddressPoolList
	if err := p.reader.List(ctx, &list); err != nil {
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
				p.log.Warn("pool is invalid", "pool", obj.Name, "error", err)
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
	p.ledger.setPools(all)
	return nil
}

// readPool parses the object as if it had the spec.
func readPool(obj *v1alpha1.IPAddressPool, spec v1alpha1.IPAddressPoolSpec) (goodPool, error) {
	pool, err := poolOf(&v1alpha1.IPAddressPool{ObjectMeta: obj.ObjectMeta, Spec: spec})
	return goodPool{uid: obj.UID, spec: spec, pool: pool}, err
}

// lastGood returns the object's last valid configuration, from this process or from an earlier leader. The caller holds
// the lock.
func (p *poolSpecs) lastGood(obj *v1alpha1.IPAddressPool) (goodPool, bool) {
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
		p.log.Warn("last good configuration of a pool cannot be parsed", "pool", obj.Name, "field", "status.lastGood", "error", err)
	}
	return last, err == nil
}

// problem returns why the pool is invalid, and the configuration in force instead, as JSON. Empty: it is valid; none.
func (p *poolSpecs) problem(name string) (why, instead string) {
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

// nextExpiry returns when the first cool-down ends.
func (l *ledger) nextExpiry() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.NextExpiry()
}

// declined records that a Service cannot be assigned now and will be retried: the room set aside when it was woken
// passes to the next one.
func (l *ledger) declined(key pools.ServiceKey) {
	l.change(func() { l.alloc.Decline(key) })
}

// waitSynced waits for the caches and logs a remediation if that takes long. False: ctx ended.
func waitSynced(ctx context.Context, log *slog.Logger, synced []cache.InformerSynced) bool {
	slow := time.AfterFunc(15*time.Second, func() {
		log.Error("waiting for the initial lists of Services, Nodes or ironlb.io objects: no address is assigned until then",
			"remediation", "apply deploy/ironlb.yaml, or upgrade the Helm release")
	})
	defer slow.Stop()
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

// trigger sends on a channel of size one unless it is full.
func trigger(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
