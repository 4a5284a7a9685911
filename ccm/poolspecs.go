package ccm

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// poolSpecs keeps the ledger's pools as the operator wrote them, and has recorded addresses adopted once after the start.
type poolSpecs struct {
	log      *slog.Logger
	ledger   *ledger
	reader   client.Reader
	services func(context.Context) ([]v1.Service, error) // from the API server
	started  func(context.Context)                       // called once adopted
	revisit  func()                                      // called after a change of pools
	synced   []cache.InformerSynced
	pulse    *pulse
	kick     chan struct{}

	mu sync.Mutex
	// good is the last readable configuration of each pool, bad why the present one cannot be read.
	good map[string]pools.Pool
	bad  map[string]string
}

// Run returns when ctx ends.
func (p *poolSpecs) Run(ctx context.Context) error {
	if !waitSynced(ctx, p.log, p.synced) {
		return nil
	}
	if err := p.apply(ctx); err != nil {
		return err
	}
	services, ok := p.recorded(ctx)
	if !ok {
		return nil
	}
	p.ledger.adopt(services)
	p.started(ctx)
	p.ledger.poolsChanged()

	rest := time.NewTimer(0)
	defer rest.Stop()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		p.pulse.beat("pools")
		select {
		case <-ctx.Done():
			return nil
		case <-rest.C:
		case <-tick.C: // the lock of the ledger is taken below: it must be to be had
		case <-p.kick:
			if err := p.apply(ctx); err != nil {
				return err
			}
			p.revisit()
		}
		if at, ok := p.ledger.expire(); ok {
			rest.Reset(time.Until(at))
		}
	}
}

// recorded reads what Services hold, however long it takes. False: ctx ended.
func (p *poolSpecs) recorded(ctx context.Context) ([]v1.Service, bool) {
	retry := newBackoff()
	for {
		services, err := p.services(ctx)
		if err == nil {
			return services, true
		}
		wait := retry.next()
		p.log.Warn("no address is given before recorded ones are adopted", "error", err, "again in", wait)
		if !sleep(ctx, wait) {
			return nil, false
		}
	}
}

// apply hands all pools to the ledger. A pool that cannot be read counts as it last was.
func (p *poolSpecs) apply(ctx context.Context) error {
	var list v1alpha1.IPAddressPoolList
	if err := p.reader.List(ctx, &list); err != nil {
		return fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	p.mu.Lock()
	good, bad := map[string]pools.Pool{}, map[string]string{}
	for i := range list.Items {
		obj := &list.Items[i]
		pool, err := poolOf(obj)
		if err != nil {
			bad[obj.Name] = err.Error()
			if p.bad[obj.Name] != err.Error() {
				p.log.Warn("pool cannot be read", "pool", obj.Name, "error", err)
			}
			var ok bool
			if pool, ok = p.good[obj.Name]; !ok {
				continue
			}
		}
		good[obj.Name] = pool
	}
	p.good, p.bad = good, bad
	all := make([]pools.Pool, 0, len(good))
	for _, pool := range good {
		all = append(all, pool)
	}
	p.mu.Unlock()
	p.ledger.setPools(all)
	return nil
}

// problem says why the pool cannot be read. Empty: it can.
func (p *poolSpecs) problem(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bad[name]
}

// waitSynced waits for the caches and says what to mend when it takes long. False: ctx ended.
func waitSynced(ctx context.Context, log *slog.Logger, synced []cache.InformerSynced) bool {
	slow := time.AfterFunc(15*time.Second, func() {
		log.Error("still waiting for the first list of Services, Nodes or ironlb.io objects: no address is given until then",
			"mend", "apply deploy/crd and deploy/rbac-ccm.yaml")
	})
	defer slow.Stop()
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

// kicked sends on a channel of size one unless it is full.
func kicked(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
