package placement

import (
	"cmp"
	"maps"
	"slices"
)

// slack is the additional imbalance among the successors of a node that is tolerated before a list is rewritten only
// for that. Without it each new address would rewrite lists of many others.
const slack = 2

// group is the units with the same first node and the same successors: the best nodes to follow it.
type group struct {
	successors []string // sorted
	entries    []*entry
	load       map[string]int // the number of units that each node would lead
	allowed    int            // maximum difference of load among the successors
	// limited: the lists have not all eligible nodes. A load up to fair, the mean of the successors rounded up, is
	// none too many.
	limited bool
	fair    int
}

// spread completes the lists after their first node.
func spread(entries []*entry, led map[string]int, ranks map[string]rank, allowed int) {
	type key struct {
		eligible *nodeSet
		weights  Weights
		able     Able
		limited  bool
	}
	byOwner := map[string]map[key]*group{}
	groups := map[string][]*group{} // per owner, in the order of their first units
	for _, e := range entries {
		e.complete(ranks)
		if len(e.nodes) < 2 {
			continue
		}
		owner, k := e.nodes[0], key{eligible: e.eligible, weights: e.unit.Weights, limited: e.most > 0}
		if k.limited {
			k.able = e.unit.Able
		}
		if byOwner[owner] == nil {
			byOwner[owner] = map[key]*group{}
		}
		g := byOwner[owner][k]
		if g == nil {
			g = &group{successors: e.successors(ranks), allowed: allowed}
			if g.limited = k.limited; g.limited {
				g.allowed = 1 + slack
			}
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
	if e.most > 0 {
		e.limit(ranks)
		return
	}
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

// successors returns the fit nodes of the greatest weight that could follow the first.
func (e *entry) successors(ranks map[string]rank) []string {
	var successors []string
	for _, n := range e.eligible.names {
		if n == e.nodes[0] || ranks[n] != fit {
			continue
		}
		if len(successors) > 0 {
			switch c := cmp.Or(e.byAble(n, successors[0]), e.unit.prefer(n, successors[0])); {
			case c > 0:
				continue
			case c < 0:
				successors = successors[:0]
			}
		}
		successors = append(successors, n)
	}
	return successors
}

// spread promotes few nodes to the second rank, so that the loads of the successors differ by at most allowed.
func (g *group) spread(ranks map[string]rank) {
	if len(g.successors) == 0 {
		return
	}
	if g.limited {
		units := len(g.entries)
		for _, n := range g.successors {
			units += g.load[n]
		}
		g.fair = (units + len(g.successors) - 1) / len(g.successors)
	}
	of := map[string][]*entry{} // by successor
	give := func(e *entry, successor string) {
		of[successor] = append(of[successor], e)
		g.load[successor]++
	}
	var free []*entry
	for _, e := range g.entries {
		successor, clean := e.successor(ranks)
		if _, ok := slices.BinarySearch(g.successors, successor); ok && clean && !e.changed() {
			give(e, successor)
			continue
		}
		free = append(free, e)
	}
	for _, e := range free { // their lists are rewritten anyway
		least := g.least(e)
		successor, clean := e.successor(ranks)
		if _, ok := slices.BinarySearch(g.successors, successor); !ok || g.load[successor] > max(g.load[least], g.fair) {
			successor, clean = least, false
		}
		if !clean {
			e.promote(successor)
		}
		give(e, successor)
	}
	for {
		least := g.least(nil)
		most := ""
		for _, n := range g.successors {
			if len(of[n]) > 0 && (most == "" || g.load[n] > g.load[most]) {
				most = n
			}
		}
		if g.load[most]-max(g.load[least], g.fair) <= g.allowed {
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

// least returns the successor with the least load; a tie is broken by the hash of the entry, or by name.
func (g *group) least(e *entry) string {
	return slices.MinFunc(g.successors, func(a, b string) int {
		if c := cmp.Compare(g.load[a], g.load[b]); c != 0 || e == nil {
			return c
		}
		return e.unit.byHash(a, b)
	})
}

// successor returns the first fit node after the first. clean: no cordoned node precedes it, which would take over.
func (e *entry) successor(ranks map[string]rank) (node string, clean bool) {
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

// promote moves the node to the second rank. In a limited list without it, it replaces the last node.
func (e *entry) promote(node string) {
	i := slices.Index(e.nodes, node)
	if i < 0 {
		i = len(e.nodes) - 1
	}
	e.nodes = slices.Insert(slices.Delete(slices.Clone(e.nodes), i, i+1), 1, node)
}
