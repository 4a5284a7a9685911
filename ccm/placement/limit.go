package placement

import (
	"cmp"
	"slices"
)

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
