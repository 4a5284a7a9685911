package pools

import "net/netip"

// Index tells which pool has an address. The zero value has none.
type Index struct{ spans []span }

// NewIndex returns the Index of these pools, of which only names, ages and ranges count. Of two that overlap the Allocator uses one; it is
// the one that has the address here, too.
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
