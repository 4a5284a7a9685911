package placement

import (
	"cmp"
	"maps"
	"slices"
)

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

// Move is a unit that should be moved from the node that holds it to a better one.
type Move struct {
	Unit, From, To string
	Reason         Reason
}

// step is a move and its benefit.
type step struct {
	Move
	drains       bool
	refused      int // nodes
	weight, load int
}

// slack is the additional imbalance among the successors of a node that is tolerated before a list is rewritten only
// for that. Without it each new address would rewrite lists of many others.
const slack = 2

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

// Most is the maximum number of nodes in a list, unless its unit requires all. Lists of all nodes do not fit large
// clusters: a node that joins would change every list, and each change is sent to every node. Most is enough: with half
// of the nodes dead at once, all of a list are dead for one address of 4 billion.
const Most = 32

// few is the share of fit and able nodes below which a list gets others.
const few = 4

// limit gives the list e.most nodes. The listed ones stay, whether or not others would be better: a node that joins
// changes no list. But if few of them are fit and able and there are others, those that are not make room.
func (e *entry) limit(ranks map[string]rank) {
	suits := func(n string) bool { return ranks[n] == fit && e.unit.able(n) }
	suitable := 0
	for _, n := range e.nodes {
		if suits(n) {
			suitable++
		}
	}
	if suitable*few < e.most && len(e.nodes) > 0 {
		other := func(n string) bool { return suits(n) && !slices.Contains(e.nodes, n) }
		if slices.ContainsFunc(e.eligible.names, other) {
			others := slices.DeleteFunc(slices.Clone(e.nodes[1:]), func(n string) bool { return !suits(n) })
			e.extend(ranks, append(e.nodes[:1:1], others...))
			return
		}
	}
	if len(e.nodes) > e.most {
		e.nodes = e.nodes[:e.most:e.most]
	}
	if len(e.nodes) < e.most {
		e.extend(ranks, e.nodes)
	}
}

// extend sets the list to these nodes and, up to the limit, the best of the others.
func (e *entry) extend(ranks map[string]rank, nodes []string) {
	if len(nodes) > e.most {
		nodes = nodes[:e.most]
	}
	type candidate struct {
		name         string
		rank         rank
		able, weight int
		hash         uint64
	}
	others := make([]candidate, 0, len(e.eligible.names))
	for _, n := range e.eligible.names {
		if slices.Contains(nodes, n) {
			continue
		}
		c := candidate{name: n, rank: ranks[n], weight: e.unit.weight(n), hash: hash(e.unit.Name, n)}
		if !e.unit.able(n) {
			c.able = 1
		}
		others = append(others, c)
	}
	slices.SortFunc(others, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.able, b.able), cmp.Compare(b.weight, a.weight),
			cmp.Compare(a.hash, b.hash), cmp.Compare(a.name, b.name))
	})
	extended := slices.Clone(nodes)
	for _, c := range others[:min(len(others), e.most-len(nodes))] {
		extended = append(extended, c.name)
	}
	if !slices.Equal(extended, e.nodes) {
		e.nodes = extended
	}
}

// byAble orders nodes of a limited list: those that can answer first.
func (e *entry) byAble(a, b string) int {
	if e.most == 0 || e.unit.able(a) == e.unit.able(b) {
		return 0
	}
	if e.unit.able(a) {
		return -1
	}
	return 1
}

// NextMove returns the next move, given the result of Place for the units. First come moves away from cordoned nodes,
// then those that increase the preference weight most, then those that even out the load most. It reports false if
// nothing is improved. Repeated moves terminate.
//
// A unit is moved only if its first node holds it and already led the previous list: the speakers would ignore a list
// that puts back the node that led it. A unit that a node has refused comes last, and is moved only away from a
// cordoned node: its Services may have endpoints on few nodes, which are not visible here.
func NextMove(units []Unit, lists []List, nodes []Node) (Move, bool) {
	ranks := make(map[string]rank, len(nodes))
	led := map[string]int{}
	draining := map[string]bool{}
	for _, n := range nodes {
		ranks[n.Name] = rankOf(n)
		draining[n.Name] = n.Cordoned
	}
	first := make(map[string]string, len(lists))
	for _, l := range lists {
		if len(l.Nodes) > 0 {
			first[l.Unit] = l.Nodes[0]
			led[l.Nodes[0]]++
		}
	}
	idle := len(units) // the number of units that the least loaded fit node leads
	for _, n := range nodes {
		if ranks[n.Name] == fit {
			idle = min(idle, led[n.Name])
		}
	}
	var best *step
	for i := range units {
		u := &units[i]
		from := first[u.Name]
		if from == "" || u.Owner != from || len(u.Previous) == 0 || u.Previous[0] != from {
			continue
		}
		drains := draining[from]
		if !drains && (!u.Movable || len(u.Refused) > 0 || u.Weights == nil && led[from]-idle < 2) {
			continue
		}
		if s := u.step(from, drains, led, ranks); s != nil && (best == nil || s.compare(best) < 0) {
			best = s
		}
	}
	if best == nil {
		return Move{}, false
	}
	return best.Move, true
}

// compare orders moves, the best first.
func (s *step) compare(t *step) int {
	if s.drains != t.drains {
		if s.drains {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(s.refused, t.refused), cmp.Compare(t.weight, s.weight), cmp.Compare(t.load, s.load), cmp.Compare(s.Unit, t.Unit))
}

// step returns the best move of the unit, nil if none improves the placement.
func (u *Unit) step(from string, drains bool, led map[string]int, ranks map[string]rank) *step {
	to := ""
	for _, n := range u.Eligible {
		r, known := ranks[n]
		if n == from || !known || r != fit || u.Refused[n] || u.Reached != nil && !u.Reached[n] ||
			!drains && u.Targets != nil && !u.Targets[n] {
			continue
		}
		if to == "" || cmp.Or(u.prefer(n, to), cmp.Compare(led[n], led[to]), u.byHash(n, to)) < 0 {
			to = n
		}
	}
	if to == "" {
		return nil
	}
	s := &step{Move{u.Name, from, to, Rebalanced}, drains, len(u.Refused), u.weight(to) - u.weight(from), led[from] - led[to]}
	if drains {
		s.Reason = Drained
		return s
	}
	if s.weight > 0 || s.weight == 0 && s.load > 1 {
		return s
	}
	return nil
}
