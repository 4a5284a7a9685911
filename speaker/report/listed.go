package report

import (
	"slices"
	"sort"
)

const (
	// ListAll is the number of members up to which a node's status lists all of them.
	ListAll = 32
	// Neighbors is how many members on each side a status lists otherwise.
	Neighbors = 4
)

// Listed returns whether the status of a node lists another node. With more than ListAll members it lists only its
// neighbors: the members and it form a ring, ordered by a hash of their names. Two members list each other or neither
// does. So the death of a node changes a fixed number of statuses, however large the cluster is, and the sizes of all
// statuses grow with the cluster, not with its square.
func Listed(node string, members map[string]MemberState) func(other string) bool {
	n := len(members)
	if n <= ListAll {
		return func(string) bool { return true }
	}
	ring := make([]uint64, 0, n)
	for name := range members {
		ring = append(ring, position(name))
	}
	slices.Sort(ring)
	find := func(p uint64) int { return sort.Search(n, func(i int) bool { return ring[i] >= p }) }
	here := find(position(node))
	return func(other string) bool {
		there, itself := find(position(other)), 0
		if _, is := members[other]; is {
			itself = 1
		}
		after, before := (there-here+n)%n, (here-there-itself+2*n)%n // members between them, on each side
		return min(after, before) < Neighbors
	}
}

// position returns the place of a node on the ring: FNV-1a, mixed by the finalizer of MurmurHash3, so that nodes with
// similar names, often in one rack, are apart.
func position(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
