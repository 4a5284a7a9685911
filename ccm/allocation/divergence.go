package allocation

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// Delays before a divergent status is repaired. After repairReset without a change the delay starts over.
const (
	repairFirst = 100 * time.Millisecond
	repairLast  = 5 * time.Minute
	repairReset = 2 * repairLast
)

// divergence requeues Services whose status another writer changed, with increasing delays: two controllers that
// contend for a Service must not escalate.
type divergence struct {
	registrar *Registrar
	wake      func(pools.ServiceKey)
	limiter   workqueue.TypedRateLimiter[pools.ServiceKey]

	mu      sync.Mutex
	repairs map[pools.ServiceKey]scheduledRepair
}

// scheduledRepair is a Service whose status diverged.
type scheduledRepair struct {
	last time.Time // time of the last scheduled repair
	due  bool      // the repair is still pending
}

func newDivergence(r *Registrar, wake func(pools.ServiceKey)) *divergence {
	return &divergence{
		registrar: r, wake: wake, repairs: map[pools.ServiceKey]scheduledRepair{},
		limiter: workqueue.NewTypedItemExponentialFailureRateLimiter[pools.ServiceKey](repairFirst, repairLast),
	}
}

// handler watches all Services. It withholds what they show without holding it. It frees what a Service held that was
// deleted without its finalizers. At each resync of
// the informer (once in 12 to 24 hours) it retries Services that lack something: nothing should depend on that.
func (d *divergence) handler(ctx context.Context) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { d.registrar.ledger.shown(o.(*v1.Service)) },
		UpdateFunc: func(b, a any) {
			before, svc := b.(*v1.Service), a.(*v1.Service)
			d.registrar.ledger.shown(svc)
			if d.registrar.diverged(svc) {
				d.repair(servicerecord.KeyOf(svc))
			} else if before.ResourceVersion == svc.ResourceVersion && d.registrar.unmet(svc) {
				d.wake(servicerecord.KeyOf(svc)) // a resync: no known change
			}
		},
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			svc, ok := o.(*v1.Service)
			if !ok {
				return
			}
			d.remove(servicerecord.KeyOf(svc))
			d.registrar.ledger.shown(svc)
			d.registrar.ledger.serviceDeleted(ctx, servicerecord.KeyOf(svc), svc.UID)
		},
	}
}

// repair wakes the Service once after its delay, however many changes are observed until then.
func (d *divergence) repair(key pools.ServiceKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.repairs[key]
	if s.due {
		return
	}
	if time.Since(s.last) > repairReset {
		d.limiter.Forget(key)
	}
	wait := d.limiter.When(key)
	d.repairs[key] = scheduledRepair{last: time.Now().Add(wait), due: true}
	time.AfterFunc(wait, func() {
		d.mu.Lock()
		if s, ok := d.repairs[key]; ok {
			s.due = false
			d.repairs[key] = s
		}
		d.mu.Unlock()
		d.wake(key)
	})
}

func (d *divergence) remove(key pools.ServiceKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limiter.Forget(key)
	delete(d.repairs, key)
}
