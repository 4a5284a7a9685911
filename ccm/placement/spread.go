package placement

import (
	"cmp"
	"maps"
	"slices"
)

// slack is the additional imbalance among the heirs of a node that is tolerated before a list is rewritten only for
// that. Without it each new address would rewrite lists of many others.
const slack = 2

// group is the units with the same first node and the same heirs: the best nodes to follow it.
type group struct {
	heirs   []string // sorted
	entries []*entry
	load    map[string]int // the number of units that each node would lead
	allowed int            // maximum difference of load among the heirs
}

// spread completes the lists after their first node.
func spread(entries []*entry, led map[string]int, ranks map[string]rank, allowed int) {
	type key struct {
		eligible *nodeSet
		weights  Weights
	}
	byOwner := map[string]map[key]*group{}
	groups := map[string][]*group{} // per owner, in the order of their first units
	for _, e := range entries {
		e.complete(ranks)
		if len(e.nodes) < 2 {
			continue
		}
		owner, k := e.nodes[0], key{e.eligible, e.unit.Weights}
		if byOwner[owner] == nil {
			byOwner[owner] = map[key]*group{}
		}
		g := byOwner[owner][k]
		if g == nil {
			g = &group{heirs: e.heirs(ranks), allowed: allowed}
			byOwner[owner][k] = g
			groups[owner] = append(groups[owner], g)
		}
		g.entries = append(g.entries, e)
	}
	for _, of := range groups {
		load := maps.Clone(led) // after the owner's death
		for _, g := range of {
			g.load = load
			g.spread(ranks)
		}
	}
}

// complete appends the missing nodes in a unit-specific order, the fit and preferred ones first.
func (e *entry) complete(ranks map[string]rank) {
	if len(e.nodes) == len(e.eligible.names) {
		return
	}
	have := len(e.nodes)
	e.nodes = slices.Clone(e.nodes)
	for _, n := range e.eligible.names {
		if !slices.Contains(e.nodes[:have], n) {
			e.nodes = append(e.nodes, n)
		}
	}
	slices.SortFunc(e.nodes[have:], func(a, b string) int {
		return cmp.Or(cmp.Compare(ranks[a], ranks[b]), e.unit.prefer(a, b), e.unit.byHash(a, b))
	})
}

// heirs returns the fit nodes of the greatest weight that could follow the first.
func (e *entry) heirs(ranks map[string]rank) []string {
	var heirs []string
	for _, n := range e.eligible.names {
		if n == e.nodes[0] || ranks[n] != fit {
			continue
		}
		if len(heirs) > 0 {
			switch c := e.unit.prefer(n, heirs[0]); {
			case c > 0:
				continue
			case c < 0:
				heirs = heirs[:0]
			}
		}
		heirs = append(heirs, n)
	}
	return heirs
}

// spread promotes few nodes to the second place, so that the loads of the heirs differ by at most allowed.
func (g *group) spread(ranks map[string]rank) {
	if len(g.heirs) == 0 {
		return
	}
	of := map[string][]*entry{} // by heir
	give := func(e *entry, heir string) {
		of[heir] = append(of[heir], e)
		g.load[heir]++
	}
	var free []*entry
	for _, e := range g.entries {
		heir, clean := e.heir(ranks)
		if _, ok := slices.BinarySearch(g.heirs, heir); ok && clean && !e.changed() {
			give(e, heir)
			continue
		}
		free = append(free, e)
	}
	for _, e := range free { // their lists are rewritten anyway
		least := g.least(e)
		heir, clean := e.heir(ranks)
		if _, ok := slices.BinarySearch(g.heirs, heir); !ok || g.load[heir] > g.load[least] {
			heir, clean = least, false
		}
		if !clean {
			e.promote(heir)
		}
		give(e, heir)
	}
	for {
		least := g.least(nil)
		most := ""
		for _, n := range g.heirs {
			if len(of[n]) > 0 && (most == "" || g.load[n] > g.load[most]) {
				most = n
			}
		}
		if g.load[most]-g.load[least] <= g.allowed {
			return
		}
		last := len(of[most]) - 1 // prefers one that is rewritten anyway
		e := of[most][last]
		of[most] = of[most][:last]
		g.load[most]--
		e.promote(least)
		give(e, least)
	}
}

// least returns the heir with the least load; a tie is broken by the hash of the entry, or by name.
func (g *group) least(e *entry) string {
	return slices.MinFunc(g.heirs, func(a, b string) int {
		if c := cmp.Compare(g.load[a], g.load[b]); c != 0 || e == nil {
			return c
		}
		return e.unit.byHash(a, b)
	})
}

// heir returns the first fit node after the first. clean: no cordoned node precedes it, which would take over.
func (e *entry) heir(ranks map[string]rank) (node string, clean bool) {
	clean = true
	for _, n := range e.nodes[1:] {
		switch ranks[n] {
		case fit:
			return n, clean
		case cordoned:
			clean = false
		}
	}
	return "", false
}

// promote moves the node to the second place.
func (e *entry) promote(node string) {
	i := slices.Index(e.nodes, node)
	e.nodes = slices.Insert(slices.Delete(slices.Clone(e.nodes), i, i+1), 1, node)
}
