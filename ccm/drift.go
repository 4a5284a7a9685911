package ccm

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/ironlb/ironlb/pools"
)

// Delays before a divergent status is repaired. After driftCalm without a change the delay starts over.
const (
	driftFirst = 100 * time.Millisecond
	driftLast  = 5 * time.Minute
	driftCalm  = 2 * driftLast
)

// drift requeues Services whose status another writer changed, with increasing delays: two controllers that contend for
// a Service must not escalate.
type drift struct {
	registrar *registrar
	wake      func(pools.ServiceKey)
	limiter   workqueue.TypedRateLimiter[pools.ServiceKey]

	mu   sync.Mutex
	seen map[pools.ServiceKey]drifting
}

// drifting is a Service whose status diverged.
type drifting struct {
	last time.Time // time of the last scheduled repair
	due  bool      // the repair is still pending
}

func newDrift(r *registrar, wake func(pools.ServiceKey)) *drift {
	return &drift{
		registrar: r, wake: wake, seen: map[pools.ServiceKey]drifting{},
		limiter: workqueue.NewTypedItemExponentialFailureRateLimiter[pools.ServiceKey](driftFirst, driftLast),
	}
}

// handler watches all Services. It frees what a Service held that was deleted without its finalizers. At each resync of
// the informer (once in 12 to 24 hours) it retries Services that lack something: nothing should depend on that.
func (d *drift) handler(ctx context.Context) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(b, a any) {
			before, svc := b.(*v1.Service), a.(*v1.Service)
			if d.registrar.drifted(svc) {
				d.mend(keyOf(svc))
			} else if before.ResourceVersion == svc.ResourceVersion && d.registrar.unmet(svc) {
				d.wake(keyOf(svc)) // a resync: no known change
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			svc, ok := o.(*v1.Service)
			if !ok {
				return
			}
			d.forget(keyOf(svc))
			d.registrar.ledger.vanish(ctx, keyOf(svc), svc.UID)
		},
	}
}

// mend wakes the Service once after its delay, however many changes are observed until then.
func (d *drift) mend(key pools.ServiceKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.seen[key]
	if s.due {
		return
	}
	if time.Since(s.last) > driftCalm {
		d.limiter.Forget(key)
	}
	wait := d.limiter.When(key)
	d.seen[key] = drifting{last: time.Now().Add(wait), due: true}
	time.AfterFunc(wait, func() {
		d.mu.Lock()
		if s, ok := d.seen[key]; ok {
			s.due = false
			d.seen[key] = s
		}
		d.mu.Unlock()
		d.wake(key)
	})
}

func (d *drift) forget(key pools.ServiceKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limiter.Forget(key)
	delete(d.seen, key)
}
