package plan

import (
	"slices"

	"github.com/ironlb/ironlb/pools"
)

// matches tells whether the advertisement covers an address of the pool on a node with these labels.
func (a Advertisement) matches(pool string, labels map[string]string) bool {
	if len(a.Pools) > 0 && !slices.Contains(a.Pools, pool) {
		return false
	}
	return len(a.Nodes) == 0 || slices.ContainsFunc(a.Nodes, func(s pools.Selector) bool { return s.Matches(labels) })
}
