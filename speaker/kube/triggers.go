package kube

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// triggers are the times at which Pods or Services changed that changed EndpointSlices: the annotation
// endpoints.kubernetes.io/last-change-trigger-time, which is not kept in the objects. As in kube-proxy, times before
// this process do not count.
type triggers struct {
	began time.Time

	mu sync.Mutex
	// at are the times of slices whose change is not in the View yet.
	at map[ref]time.Time
}

func newTriggers() *triggers { return &triggers{began: time.Now(), at: map[ref]time.Time{}} }

// record returns the trim of EndpointSlices that records the time before the annotation is cut off.
func (t *triggers) record(trim cache.TransformFunc) cache.TransformFunc {
	return func(obj any) (any, error) {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok {
			return trim(obj) // a tombstone
		}
		at, err := time.Parse(time.RFC3339Nano, slice.Annotations[corev1.EndpointsLastChangeTriggerTime])
		if err == nil && at.After(t.began) {
			t.mu.Lock()
			t.at[refOfSlice(slice)] = at
			t.mu.Unlock()
		}
		return trim(obj)
	}
}

// take returns the time of a changed slice, and deletes it.
func (t *triggers) take(r ref) (at time.Time, known bool) {
	if r.kind != kindSlice {
		return time.Time{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at, known = t.at[r]
	delete(t.at, r)
	return at, known
}
