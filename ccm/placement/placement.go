// Package placement decides which nodes may answer for each address, and in which order.
//
// It is pure. The rules, in order of weight:
//
//  1. Nothing moves without need: a node that can keep an address keeps it. A node that joins or returns takes nothing.
//  2. An address whose node is not ready, or may no longer answer, goes to the next node of its list, which is what
//     the speakers do by themselves. The node that is not ready goes to the end, so that its return takes nothing back.
//  3. A new address goes to the node that leads the fewest, a tie is broken by a stable hash.
//  4. The second place of each list is chosen so that the addresses of a node that dies spread over all the others, the
//     least loaded ones first.
package placement

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// Node is a node that may be in a list.
type Node struct {
	Name  string
	Ready bool
}

// Unit is one set of addresses that move together.
type Unit struct {
	Name string
	// Eligible names the nodes that may answer.
	Eligible []string
	// Previous is the list decided before, empty for a new unit.
	Previous []string
}

// Reason is why a list is not what it was.
type Reason string

// The reasons, the weightiest first when there are several.
const (
	// Unchanged: the list is as before.
	Unchanged Reason = "Unchanged"
	// Created: the unit is new.
	Created Reason = "Created"
	// NoEligibleNode: no node may answer any more.
	NoEligibleNode Reason = "NoEligibleNode"
	// OwnerNotEligible: the first node may no longer answer.
	OwnerNotEligible Reason = "OwnerNotEligible"
	// OwnerNotReady: the first node is not ready.
	OwnerNotReady Reason = "OwnerNotReady"
	// NodesChanged: other nodes joined or left the list.
	NodesChanged Reason = "NodesChanged"
	// Spread: only the order after the first changed, so that a failure spreads.
	Spread Reason = "Spread"
)

// List is the decision for one unit.
type List struct {
	Unit string
	// Nodes in order of preference. Empty: no node may answer.
	Nodes  []string
	Reason Reason
}

// entry is a unit while it is being decided.
type entry struct {
	unit     Unit
	eligible *nodeSet
	nodes    []string // shared with unit.Previous as long as it is the same: never changed in place
	reason   Reason
}

// Place returns one list per unit, sorted by unit. The answer does not depend on the order of units, nodes or Eligible,
// and placing again what it returned changes nothing. Units that may share an Eligible slice should: it is read once.
func Place(units []Unit, nodes []Node) []List {
	ready := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		ready[n.Name] = n.Ready
	}
	sets := newNodeSets(ready)
	entries := make([]*entry, len(units))
	for i, u := range units {
		entries[i] = &entry{unit: u, eligible: sets.of(u.Eligible)}
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.unit.Name, b.unit.Name) })

	led := map[string]int{}
	for _, e := range entries {
		e.keep(ready)
		if len(e.nodes) > 0 {
			led[e.nodes[0]]++
		}
	}
	for _, e := range entries {
		e.lead(led, ready)
	}
	spread(entries, led, ready)

	lists := make([]List, len(entries))
	for i, e := range entries {
		lists[i] = List{Unit: e.unit.Name, Nodes: e.nodes, Reason: e.why()}
	}
	return lists
}

// keep carries the previous list over: without the nodes that may no longer answer, and with the nodes that are not
// ready moved from the front to the end. A list without any ready node stays, for there is no better one.
func (e *entry) keep(ready map[string]bool) {
	e.nodes = slices.Clip(e.unit.Previous)
	if !e.eligible.holds(e.nodes) {
		e.nodes = nil
		for _, n := range e.unit.Previous {
			if e.eligible.has[n] && !slices.Contains(e.nodes, n) {
				e.nodes = append(e.nodes, n)
			}
		}
	}
	first := slices.IndexFunc(e.nodes, func(n string) bool { return ready[n] })
	if first > 0 {
		e.reason = OwnerNotReady
		e.nodes = slices.Concat(e.nodes[first:], e.nodes[:first])
	}
}

// lead gives the unit a first node if it has none, or if none of its nodes is ready and another one is.
func (e *entry) lead(led map[string]int, ready map[string]bool) {
	if len(e.eligible.names) == 0 || len(e.nodes) > 0 && ready[e.nodes[0]] {
		return
	}
	best := slices.MinFunc(e.eligible.names, func(a, b string) int {
		return cmp.Or(readyFirst(ready, a, b), cmp.Compare(led[a], led[b]), e.byHash(a, b))
	})
	if len(e.nodes) > 0 {
		if !ready[best] {
			return
		}
		e.reason = OwnerNotReady
		led[e.nodes[0]]--
	}
	e.nodes = slices.Insert(slices.Clip(e.nodes), 0, best)
	led[best]++
}

// byHash orders nodes in a way of the unit's own that stays the same whatever other nodes there are.
func (e *entry) byHash(a, b string) int {
	return cmp.Or(cmp.Compare(hash(e.unit.Name, a), hash(e.unit.Name, b)), cmp.Compare(a, b))
}

func hash(unit, node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(unit))
	h.Write([]byte{0})
	h.Write([]byte(node))
	// FNV's high bits hardly change with the last bytes: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

func readyFirst(ready map[string]bool, a, b string) int {
	switch {
	case ready[a] == ready[b]:
		return 0
	case ready[a]:
		return -1
	default:
		return 1
	}
}

// why compares the decision with the previous list.
func (e *entry) why() Reason {
	prev := e.unit.Previous
	switch {
	case slices.Equal(prev, e.nodes):
		return Unchanged
	case len(e.nodes) == 0:
		return NoEligibleNode
	case len(prev) == 0:
		return Created
	}
	if !e.eligible.has[prev[0]] {
		return OwnerNotEligible
	}
	if e.reason != "" {
		return e.reason
	}
	if len(prev) != len(e.nodes) || !slices.Equal(slices.Sorted(slices.Values(prev)), slices.Sorted(slices.Values(e.nodes))) {
		return NodesChanged
	}
	return Spread
}
