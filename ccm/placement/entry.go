package placement

import (
	"cmp"
	"slices"
)

// entry is a unit during the decision.
type entry struct {
	unit     Unit
	eligible *nodeSet
	good     bool     // unit.Previous has eligible nodes only, each once
	most     int      // the limit of the list, 0 if it has all eligible nodes
	nodes    []string // shared with unit.Previous while equal: never changed in place
	reason   Reason
}

// keep carries the previous list over without the nodes that are no longer eligible, and puts the proper leader first.
func (e *entry) keep(ranks map[string]rank) {
	e.nodes = slices.Clip(e.unit.Previous)
	if !e.good {
		e.nodes = nil
		for _, n := range e.unit.Previous {
			if e.eligible.has[n] && !slices.Contains(e.nodes, n) {
				e.nodes = append(e.nodes, n)
			}
		}
	}
	switch u := &e.unit; {
	case e.eligible.has[u.Lead]:
		e.first(u.Lead, u.Why)
	case e.eligible.has[u.Owner]:
		if i := slices.Index(e.nodes, u.Owner); i >= 0 {
			e.rotate(i, OwnerLeads)
		} else {
			e.first(u.Owner, OwnerLeads)
		}
	case len(e.nodes) > 0:
		best := slices.MinFunc(e.nodes, func(a, b string) int { return cmp.Compare(ranks[a], ranks[b]) }) // the first of equals
		if ranks[best] < ranks[e.nodes[0]] {
			e.rotate(slices.Index(e.nodes, best), demotionReason(ranks[e.nodes[0]]))
		}
	}
}

// demotionReason returns why a node that is not a known owner does not lead.
func demotionReason(r rank) Reason {
	if r == cordoned {
		return OwnerCordoned
	}
	return OwnerNotReady
}

// rotate makes the list begin at i; the nodes before i move to the end.
func (e *entry) rotate(i int, why Reason) {
	if i > 0 {
		e.reason = why
		e.nodes = slices.Concat(e.nodes[i:], e.nodes[:i])
	}
}

// first puts the node before all others.
func (e *entry) first(node string, why Reason) {
	if len(e.nodes) > 0 && e.nodes[0] == node {
		return
	}
	e.reason = why
	others := slices.DeleteFunc(slices.Clone(e.nodes), func(n string) bool { return n == node })
	e.nodes = slices.Insert(others, 0, node)
}

// lead gives the unit a first node if it has none, or if there is no owner and a better node is not in the list yet.
func (e *entry) lead(led map[string]int, ranks map[string]rank) {
	if len(e.eligible.names) == 0 {
		return
	}
	if len(e.nodes) > 0 {
		if first := e.nodes[0]; ranks[first] == fit || first == e.unit.Owner || first == e.unit.Lead || len(e.nodes) == len(e.eligible.names) {
			return
		}
	}
	best := slices.MinFunc(e.eligible.names, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(ranks[a], ranks[b]), e.byAble(a, b), e.unit.prefer(a, b), cmp.Compare(led[a], led[b]), e.unit.byHash(a, b),
		)
	})
	if len(e.nodes) > 0 {
		if ranks[best] >= ranks[e.nodes[0]] {
			return
		}
		led[e.nodes[0]]--
		e.first(best, demotionReason(ranks[e.nodes[0]]))
	} else {
		e.nodes = []string{best}
	}
	led[best]++
}

// changed reports whether the list differs from the previous one.
func (e *entry) changed() bool {
	return keyOf(e.nodes) != keyOf(e.unit.Previous) && !slices.Equal(e.nodes, e.unit.Previous)
}

// why compares the decision with the previous list.
func (e *entry) why() Reason {
	prev := e.unit.Previous
	switch {
	case !e.changed():
		return Unchanged
	case len(e.nodes) == 0:
		return NoEligibleNode
	case len(prev) == 0:
		return Created
	case !e.eligible.has[prev[0]]:
		return OwnerNotEligible
	case e.reason != "":
		return e.reason
	case !e.good || len(prev) != len(e.nodes):
		return NodesChanged
	}
	return Spread
}
