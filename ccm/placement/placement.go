// Package placement decides which nodes may announce each address, and in which order.
//
// It is pure. The rules, in order of precedence:
//
//  1. Nothing moves without need. The owner of an address leads its list as long as it is eligible: the speakers elect
//     the owner, and the list follows. A node that joins or returns takes nothing.
//
//  2. Without an owner, the first ready node of the list leads; the nodes before it move to the end.
//
//  3. A new address is led by the node with the greatest preference weight, then by the one that leads fewest units.
//     A stable hash breaks ties.
//
//  4. The second node of each list is chosen so that the addresses of a dead node spread over all the others, the
//     least loaded ones first.
//
//  5. An address moves deliberately on request, by the policy of a pool, or off a cordoned node, one at a time: see
//     [NextMove].
//
//  6. A list has at most [Most] nodes, unless the unit requires all: see limit.go.
//
// A node that is not ready or cordoned loses nothing by [Place] alone. It only ranks after the others in a new choice.
package placement

import (
	"cmp"
	"slices"
)

// Placer places repeatedly. It caches its parsed input, not its decisions. The zero value is ready.
type Placer struct {
	sets *nodeSets
	read map[readKey]bool // lists that contain only nodes of the set, each once
	most int              // in place of Most, for tests
}

// readKey is an immutable list and a set of nodes.
type readKey struct {
	list sliceKey
	set  *nodeSet
}

// Place returns one list per unit, sorted by unit. The result does not depend on the order of units, nodes or Eligible,
// or on earlier placements. Placing its result again changes nothing. The given slices and maps must not change later;
// units should share them if possible.
//
// After the death of a node its units spread: no node leads more than one unit more than another. This requires that
// the nodes were balanced before and every unit may be on every node. It costs some rewritten lists with each new unit.
// Without exact, the order after the first node is kept while it is at most [slack] worse. So it is for lists of [Most]
// nodes, where a node that joins is not a successor of all the others' units either.
func (p *Placer) Place(units []Unit, nodes []Node, exact bool) []List {
	ranks := make(map[string]rank, len(nodes))
	for _, n := range nodes {
		ranks[n.Name] = rankOf(n)
	}
	p.sets = p.sets.renew(ranks)
	read := make(map[readKey]bool, len(units))
	entries := make([]*entry, len(units))
	for i, u := range units {
		e := &entry{unit: u, eligible: p.sets.of(u.Eligible)}
		if most := cmp.Or(p.most, Most); !u.All && len(e.eligible.names) > most {
			e.most = most
		}
		key := readKey{keyOf(u.Previous), e.eligible}
		good, known := p.read[key]
		if !known {
			good = e.eligible.holds(u.Previous)
		}
		read[key] = good
		e.good = good
		e.keep(ranks)
		entries[i] = e
	}
	p.read = read
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.unit.Name, b.unit.Name) })

	led := map[string]int{}
	for _, e := range entries {
		if len(e.nodes) > 0 {
			led[e.nodes[0]]++
		}
	}
	for _, e := range entries {
		e.lead(led, ranks)
	}
	allowed := 1
	if !exact {
		allowed += slack
	}
	spread(entries, led, ranks, allowed)

	lists := make([]List, len(entries))
	for i, e := range entries {
		lists[i] = List{Unit: e.unit.Name, Nodes: e.nodes, Reason: e.why()}
	}
	return lists
}
