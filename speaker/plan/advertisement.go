package plan

import (
	"slices"

	"github.com/ironlb/ironlb/pools"
)

// matches reports whether the advertisement covers an address of the pool on a node with these labels.
func (a Advertisement) matches(pool string, poolLabels, node map[string]string) bool {
	return a.serves(pool, poolLabels) && a.on(node)
}

// serves reports whether the advertisement covers an address of the pool on some node.
func (a Advertisement) serves(pool string, poolLabels map[string]string) bool {
	all := len(a.Pools) == 0 && len(a.PoolSelectors) == 0
	return all || slices.Contains(a.Pools, pool) || anyMatches(a.PoolSelectors, poolLabels)
}

// on reports whether the advertisement covers any address on a node with these labels.
func (a Advertisement) on(node map[string]string) bool {
	return len(a.Nodes) == 0 || anyMatches(a.Nodes, node)
}

// covers reports whether the advertisement selects every Service, given their labels.
func (a Advertisement) covers(services []map[string]string) bool {
	return len(a.Services) == 0 || !slices.ContainsFunc(services, func(labels map[string]string) bool { return !anyMatches(a.Services, labels) })
}

func anyMatches(selectors []pools.Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s pools.Selector) bool { return s.Matches(labels) })
}
