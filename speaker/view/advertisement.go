package view

import (
	"slices"

	"github.com/ironlb/ironlb/pools"
)

// Pool is an IPAddressPool.
type Pool struct {
	Labels map[string]string
	// Ranges are the last valid ones, or none. Of two overlapping pools the older by Created has the addresses, then
	// the first by name.
	Ranges  []pools.Range
	Created int64
	// ReturnRoutes are the last valid ones, in order of preference. The slice is immutable.
	ReturnRoutes []pools.ReturnRoute
}

// Advertisement selects the addresses to announce by ARP and NDP, and where.
type Advertisement struct {
	// Pools whose addresses are announced, by name or by any of the selectors; both empty for all.
	Pools         []string
	PoolSelectors []pools.Selector
	// Services whose addresses are announced: any of the selectors matches; empty for all.
	Services []pools.Selector
	// Nodes that may answer: any of the selectors matches; empty for all.
	Nodes []pools.Selector
	// Interfaces on which to answer; empty for those whose subnet contains the address.
	Interfaces []string
}

// Matches reports whether the advertisement covers an address of the pool on a node with these labels.
func (a Advertisement) Matches(pool string, poolLabels, node map[string]string) bool {
	return a.Serves(pool, poolLabels) && a.On(node)
}

// Serves reports whether the advertisement covers an address of the pool on some node.
func (a Advertisement) Serves(pool string, poolLabels map[string]string) bool {
	all := len(a.Pools) == 0 && len(a.PoolSelectors) == 0
	return all || slices.Contains(a.Pools, pool) || anyMatches(a.PoolSelectors, poolLabels)
}

// On reports whether the advertisement covers any address on a node with these labels.
func (a Advertisement) On(node map[string]string) bool {
	return len(a.Nodes) == 0 || anyMatches(a.Nodes, node)
}

// Covers reports whether the advertisement selects every Service, given their labels.
func (a Advertisement) Covers(services []map[string]string) bool {
	return len(a.Services) == 0 || !slices.ContainsFunc(services, func(labels map[string]string) bool { return !anyMatches(a.Services, labels) })
}

func anyMatches(selectors []pools.Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s pools.Selector) bool { return s.Matches(labels) })
}
