package kube

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironlb/ironlb/speaker/view"
)

// The time of a change is passed on once, with the change: not for an unchanged or a deleted slice, which has the time
// of its last change, and not if it precedes the process.
func TestTriggerTimes(t *testing.T) {
	f := newFeed(t)
	at := func(s *discoveryv1.EndpointSlice, t time.Time) *discoveryv1.EndpointSlice {
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: t.UTC().Format(time.RFC3339Nano)}
		return s
	}
	first, second := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour) // of this process, whatever its clock does
	f.slices.Add(at(slice("old", "10.0.0.1"), time.Now().Add(-time.Hour)))
	f.slices.Add(at(slice("web-1", "10.0.0.2"), first))
	f.run(t)
	endpoints := func(n int) func(v *view.View) bool {
		return func(v *view.View) bool {
			got := 0
			for _, s := range v.Slices[web] {
				got += len(s.Endpoints)
			}
			return got == n
		}
	}
	want := func(got []time.Time, want ...time.Time) {
		t.Helper()
		if !slices.EqualFunc(got, want, func(a, b time.Time) bool { return a.Equal(b) }) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	want(f.until(t, "both slices", endpoints(2)).Since, first)
	f.slices.Modify(at(slice("web-1", "10.0.0.2"), second)) // without effect
	f.slices.Modify(at(slice("old", "10.0.0.1", "10.0.0.3"), second))
	want(f.until(t, "another endpoint", endpoints(3)).Since, second)
	f.slices.Delete(at(slice("old"), second))
	want(f.until(t, "the end of a slice", endpoints(1)).Since)
}
