package placement

import (
	"cmp"
	"slices"
)

// slack is how far the number of units that a node would inherit may be above its share before a list is rewritten only
// for that. With 0 each new address would rewrite lists of others just to keep the count exact.
const slack = 2

// group is the units with the same first node and the same heirs: the ready nodes that could follow it.
type group struct {
	heirs   []string
	entries []*entry
}

// spread completes the lists after their first node.
func spread(entries []*entry, led map[string]int, ready map[string]bool) {
	type key struct {
		owner    string
		eligible *nodeSet
	}
	groups := map[key]*group{}
	var order []*group
	for _, e := range entries {
		e.complete(ready)
		if len(e.nodes) < 2 {
			continue
		}
		k := key{e.nodes[0], e.eligible}
		g := groups[k]
		if g == nil {
			g = &group{}
			for _, n := range e.eligible.names {
				if n != e.nodes[0] && ready[n] {
					g.heirs = append(g.heirs, n)
				}
			}
			groups[k] = g
			order = append(order, g)
		}
		g.entries = append(g.entries, e)
	}
	for _, g := range order {
		g.spread(led)
	}
}

// complete appends the nodes that the list lacks: the ready ones first, in an order of the unit's own.
func (e *entry) complete(ready map[string]bool) {
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
	slices.SortFunc(e.nodes[have:], func(a, b string) int { return cmp.Or(readyFirst(ready, a, b), e.byHash(a, b)) })
}

// spread moves few nodes up to the second place, so that every heir comes to within slack of its share, and none that
// should inherit something is left without.
func (g *group) spread(led map[string]int) {
	if len(g.heirs) == 0 {
		return
	}
	share := shares(len(g.entries), g.heirs, led)
	of := map[string][]*entry{} // by heir
	var loose []*entry
	for _, e := range g.entries {
		n := e.heir(g.heirs)
		allowed := share[n] + slack
		if !slices.Equal(e.nodes, e.unit.Previous) {
			allowed = share[n] // it is written anyway
		}
		if len(of[n]) >= allowed {
			loose = append(loose, e)
			continue
		}
		of[n] = append(of[n], e)
	}
	for _, e := range loose {
		best := slices.MinFunc(g.heirs, func(a, b string) int {
			return cmp.Or(cmp.Compare(len(of[a])-share[a], len(of[b])-share[b]), e.byHash(a, b))
		})
		of[best] = append(of[best], e)
		e.promote(best)
	}
	for _, n := range g.heirs {
		if len(of[n]) > 0 || share[n] == 0 {
			continue
		}
		// Mostly a node that has just become ready. The heir that would be loaded most gives one of its several.
		most := slices.MaxFunc(g.heirs, func(a, b string) int { return cmp.Compare(led[a]+len(of[a]), led[b]+len(of[b])) })
		if last := len(of[most]) - 1; last > 0 && led[most]+len(of[most]) > led[n]+1 {
			e := of[most][last]
			of[most], of[n] = of[most][:last], []*entry{e}
			e.promote(n)
		}
	}
}

// heir returns the node that takes over when the first one dies.
func (e *entry) heir(heirs []string) string {
	for _, n := range e.nodes[1:] {
		if _, ok := slices.BinarySearch(heirs, n); ok {
			return n
		}
	}
	return ""
}

// promote moves the node to the second place.
func (e *entry) promote(node string) {
	i := slices.Index(e.nodes, node)
	e.nodes = slices.Insert(slices.Delete(slices.Clone(e.nodes), i, i+1), 1, node)
}

// shares says how many of n units each heir should inherit, so that all end up with as equal a load as can be.
func shares(n int, heirs []string, led map[string]int) map[string]int {
	byLoad := slices.Clone(heirs)
	slices.SortFunc(byLoad, func(a, b string) int { return cmp.Or(cmp.Compare(led[a], led[b]), cmp.Compare(a, b)) })
	// Raise the least loaded ones to the level of the next one, as water does, while n lasts.
	low, left := 1, n
	for low < len(byLoad) {
		step := (led[byLoad[low]] - led[byLoad[low-1]]) * low
		if step > left {
			break
		}
		left -= step
		low++
	}
	level := led[byLoad[low-1]] + left/low
	out := make(map[string]int, low)
	for i, h := range byLoad[:low] {
		out[h] = level - led[h]
		if i < left%low {
			out[h]++
		}
	}
	return out
}
