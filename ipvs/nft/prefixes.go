package nft

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// group identifies the prefixes that must not overlap: those of a set, and in Allowed those of one virtual server.
// nftables refuses overlapping prefixes in one group, so the kernel gets only those that no other of the group
// contains. The others are kept here for when the larger one is deleted.
type group struct {
	set ipvs.Set
	key ipvs.Key
}

type prefixes map[netip.Prefix]struct{}

// outermost returns the prefixes that no other one contains.
func (p prefixes) outermost() prefixes {
	outer := make(prefixes, len(p))
	for _, prefix := range ipvs.Disjoint(slices.Collect(maps.Keys(p))) {
		outer[prefix] = struct{}{}
	}
	return outer
}

// groups are the wanted prefixes of every group.
type groups map[group]prefixes

func hasPrefix(s ipvs.Set) bool { return shapes[s] == prefix || shapes[s] == serverFrom }

// change takes the wanted changes and returns those that the kernel needs, deletions first: nftables refuses an
// addition while an overlapping element exists. The cost follows the number of changes and the size of the groups they
// touch.
func (g groups) change(changes []ipvs.FilterChange) []ipvs.FilterChange {
	var deletions, additions []ipvs.FilterChange
	before := make(map[group]prefixes)
	var touched []group
	for _, c := range changes {
		switch {
		case hasPrefix(c.Element.Set):
			at := group{c.Element.Set, c.Element.Key}
			if _, seen := before[at]; !seen {
				before[at] = g[at].outermost()
				touched = append(touched, at)
			}
			g.put(at, c.Element.Prefix(), c.Delete)
		case c.Delete:
			deletions = append(deletions, c)
		default:
			additions = append(additions, c)
		}
	}
	for _, at := range touched {
		after := g[at].outermost()
		deletions = at.differ(deletions, before[at], after, true)
		additions = at.differ(additions, after, before[at], false)
	}
	return append(deletions, additions...)
}

func (g groups) put(at group, prefix netip.Prefix, remove bool) {
	if remove {
		if delete(g[at], prefix); len(g[at]) == 0 {
			delete(g, at)
		}
		return
	}
	if g[at] == nil {
		g[at] = make(prefixes)
	}
	g[at][prefix] = struct{}{}
}

// differ appends the changes for the prefixes in a that are not in b.
func (at group) differ(changes []ipvs.FilterChange, a, b prefixes, remove bool) []ipvs.FilterChange {
	for prefix := range a {
		if _, also := b[prefix]; !also {
			changes = append(changes, ipvs.FilterChange{
				Element: ipvs.Element{Set: at.set, Key: at.key}.From(prefix), Delete: remove,
			})
		}
	}
	return changes
}

// reduce returns the kernel's content for a filter, and its groups.
func reduce(want ipvs.Filter) (ipvs.Filter, groups) {
	all := make([]ipvs.FilterChange, 0, len(want))
	for e := range want {
		all = append(all, ipvs.FilterChange{Element: e})
	}
	g := make(groups)
	reduced := make(ipvs.Filter, len(want))
	for _, c := range g.change(all) {
		reduced[c.Element] = struct{}{}
	}
	return reduced, g
}
