// Package incremental has what the incremental plans keep their state in: an Index is a relation with a lookup by one
// side, Set changes one entry of a map, and Earlier combines two due times.
package incremental

import "time"

// Index is a relation with a lookup by one side.
type Index[K, V comparable] map[K]map[V]struct{}

// Add adds a pair.
func (x Index[K, V]) Add(k K, v V) {
	if x[k] == nil {
		x[k] = map[V]struct{}{}
	}
	x[k][v] = struct{}{}
}

// Remove removes a pair.
func (x Index[K, V]) Remove(k K, v V) {
	delete(x[k], v)
	if len(x[k]) == 0 {
		delete(x, k)
	}
}

// Set sets an entry of a map, or deletes it if it is not present.
func Set[K comparable, V any](m map[K]V, key K, value V, present bool) {
	if present {
		m[key] = value
	} else {
		delete(m, key)
	}
}

// Earlier returns the earlier of two times; zero means never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
