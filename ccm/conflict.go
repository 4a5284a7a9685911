package ccm

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/ironlb/ironlb/pools"
)

// conflictTries is the maximum number of decisions about a Service before the conflict is an error. Each needs another
// change of the Service in the few milliseconds between a read and a write.
const conflictTries = 5

// retryOnConflict runs decide for the Service. If the API server refuses the write because the Service has changed, it
// runs it again for the current Service. The controllers' own retry would be 5 s later, with a Warning. If the
// Service is deleted by then, its entry in the ledger is released.
func (r *registrar) retryOnConflict(
	ctx context.Context, svc *v1.Service, decide func(context.Context, *v1.Service) error,
) error {
	exists, err := decideWithRetry(ctx, r.api, svc, func(now *v1.Service) error {
		if now != svc && now.DeletionTimestamp != nil && !recorded(now) && !has(now, finalizer) {
			return r.ledger.release(ctx, keyOf(now), now.UID) // nothing was written, so no controller cleans up
		}
		if now != svc {
			r.ledger.disown(now)
		}
		return decide(ctx, now)
	})
	if !exists {
		return r.ledger.release(ctx, keyOf(svc), svc.UID)
	}
	return err
}

// decideWithRetry calls decide with the Service, and after a conflict with the current Service. exists is false if it
// no longer exists.
func decideWithRetry(
	ctx context.Context, api corev1.ServicesGetter, svc *v1.Service, decide func(*v1.Service) error,
) (exists bool, err error) {
	for range conflictTries {
		if err = decide(svc); !apierrors.IsConflict(err) {
			return true, err
		}
		now, failed := readService(ctx, api, svc)
		if failed != nil || now == nil {
			return failed != nil, failed
		}
		svc = now
	}
	return true, err
}

// readService returns the Service from the API server, nil if it is deleted. It uses a list, for which the controllers
// have the permission anyway.
func readService(ctx context.Context, api corev1.ServicesGetter, svc *v1.Service) (*v1.Service, error) {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, svc.Name).String()}
	list, err := api.Services(svc.Namespace).List(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("reading Service %s: %w", keyOf(svc), err)
	}
	for i := range list.Items {
		if s := &list.Items[i]; s.Name == svc.Name && s.UID == svc.UID {
			return s, nil
		}
	}
	return nil, nil
}

// older reports whether the first version of an object came before the second one.
func older(version, than string) bool {
	c, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && c < 0
}

// errOlderCopy is the conflict of a decision about an outdated version of the Service: a newer one was decided about.
func errOlderCopy(svc *v1.Service) error {
	return apierrors.NewConflict(v1.Resource("services"), keyOf(svc).String(),
		fmt.Errorf("version %s is not the last one decided about", svc.ResourceVersion))
}

// refused records that the API server did not accept a write to the Service: its object is unchanged.
func (l *ledger) refused(svc *v1.Service) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[keyOf(svc)]; e != nil && e.uid == svc.UID {
		e.busy = false
	}
}

// disown drops the decision for a Service that this process has never written and that shows recorded addresses without
// a holder. A killed leader had sent them, and they arrived after recorded addresses were adopted. The next decision
// starts from them.
func (l *ledger) disown(svc *v1.Service) {
	key := keyOf(svc)
	l.mu.Lock()
	free := func(h pools.Address) bool {
		_, named := recordedFor(svc, h.Addr)
		return named && len(l.alloc.Holders(h.Addr)) == 0
	}
	e := l.entries[key]
	if e == nil || e.uid != svc.UID || e.version != "" || e.unsure || !slices.ContainsFunc(l.settings.heldBy(svc), free) {
		l.mu.Unlock()
		return
	}
	l.alloc.Release(key, l.now())
	delete(l.entries, key)
	woken := l.alloc.Wake(l.now())
	l.mu.Unlock()
	l.propagate(woken)
}
