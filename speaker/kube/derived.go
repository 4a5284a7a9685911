package kube

import "sync"

// derived is a value that is computed from all objects of some kinds, and again only after one of them changed.
type derived[T any] struct {
	mu       sync.Mutex
	computed bool
	seen     uint64 // events at the start of the computation
	value    T
}

// of returns the value. The caller must not change it. kinds must be the same in each call.
func (d *derived[T]) of(s *Source, compute func() T, kinds ...string) T {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := uint64(0)
	for _, kind := range kinds {
		now += s.events[kind].Load()
	}
	if !d.computed || now != d.seen {
		d.value, d.seen, d.computed = compute(), now, true
	}
	return d.value
}
