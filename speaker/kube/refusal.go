package kube

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// refusedFor is how many times in a row the API server must refuse a watch before it counts: one that starts forbids everything for a
// moment, until it knows its roles, and does not find what a CustomResourceDefinition defines until it has read that. With the
// reflector's back-off that is about six seconds.
const refusedFor = 4

// refusal is the API server's word that a kind cannot be read: there is none, or it is forbidden. While it is only away, nothing is known.
type refusal struct {
	changed func()
	// builtIn is set for a kind of Kubernetes itself: whether there is one the API server knows from its start.
	builtIn bool

	mu    sync.Mutex
	times int
	text  string
}

// watched returns a handler of the errors of a watch, which notes refusals before the other one has them.
func (r *refusal) watched(next cache.WatchErrorHandlerWithContext) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, from *cache.Reflector, err error) {
		r.note(err)
		next(ctx, from, err)
	}
}

func (r *refusal) note(err error) {
	r.mu.Lock()
	before := r.text
	switch {
	case r.builtIn && apierrors.IsNotFound(err):
		r.text = err.Error()
	case !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
		r.times = 0
	default:
		if r.times++; r.times >= refusedFor {
			r.text = err.Error()
		}
	}
	changed := r.text != before
	r.mu.Unlock()
	if changed {
		r.changed()
	}
}

// why returns what the API server said, nothing if it has not refused.
func (r *refusal) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text
}
