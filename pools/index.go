package pools

import "net/netip"

// Index maps an address to its pool. The zero value has none.
type Index struct{ spans []span }

// NewIndex returns the Index of these pools. Only names, ages and ranges count. If two pools overlap, the address
// belongs to the same pool as in the Allocator.
func NewIndex(all []Pool) Index {
	_, used := arrange(all)
	return Index{used}
}

// PoolOf returns the name of the pool that has the address, empty for none.
func (x Index) PoolOf(addr netip.Addr) string {
	if sp, ok := findSpan(x.spans, addr); ok {
		return sp.pool.Name
	}
	return ""
}
