package kube

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// refusedFor is how many times in a row the API server must refuse a watch before it counts. A starting API server
// briefly forbids everything, until it has loaded its roles. It also does not find the kinds of a
// CustomResourceDefinition until it has read that. With the reflector's back-off that is about six seconds.
const refusedFor = 4

// refusal records that the API server denies a kind: it does not exist, or it is forbidden. While the API server is
// only unavailable, nothing is known.
type refusal struct {
	changed func()
	// builtIn is set for a kind of Kubernetes itself: from its start the API server knows whether it has the kind.
	builtIn bool

	mu    sync.Mutex
	times int
	text  string
}

// watched returns an error handler for a watch that records refusals and then calls next.
func (r *refusal) watched(next cache.WatchErrorHandlerWithContext) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, from *cache.Reflector, err error) {
		r.record(err)
		next(ctx, from, err)
	}
}

func (r *refusal) record(err error) {
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

// why returns the API server's message, empty if it has not refused.
func (r *refusal) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text
}

// Refused returns the API server's message about each optional kind that it refuses. An older Kubernetes without a
// built-in kind refuses nothing.
func (s *Source) Refused() (messages []string) {
	for _, o := range s.optional {
		if why := o.refused.why(); why != "" && !o.refused.builtIn && !o.synced() {
			messages = append(messages, why)
		}
	}
	return messages
}
