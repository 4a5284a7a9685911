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
//  6. A list has at most [Most] nodes, unless the unit requires all.
//
// A node that is not ready or cordoned loses nothing by [Place] alone. It only ranks after the others in a new choice.
package placement

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"unsafe"
)

// Node is a candidate for a list.
type Node struct {
	Name string
	// Ready is the status in Kubernetes. The speakers' view of live nodes is more accurate.
	Ready bool
	// Cordoned nodes are about to be drained.
	Cordoned bool
}

// Unit is one set of addresses that move together.
type Unit struct {
	Name string
	// Eligible names the nodes that may announce the unit.
	Eligible []string
	// Weights are the preferences by node, greater than 0. Nil: all nodes are equal.
	Weights Weights
	// All lists every eligible node: only some of them may be able to answer, and it is not known which. The list has
	// at most [Most] nodes otherwise.
	All bool
	// Able are the nodes that can answer as far as known; they come first in a list of [Most]. Nil: unknown.
	Able Able
	// Previous is the previous list, empty for a new unit.
	Previous []string
	// Owner is the node that announces the unit now, empty if unknown.
	Owner string
	// Lead, if eligible, is put first although another node may hold: the unit is being moved, for the reason Why.
	Lead string
	Why  Reason
	// Movable units may be moved by [NextMove] to Takers (nil: all nodes), but not to Refused.
	Movable          bool
	Targets, Refused map[string]bool
	// Reached are the nodes that the owner can hand over to. Nil: all nodes.
	Reached map[string]bool
}

// Weights are preferences by node. They are compared by identity: units with equal weights should share the pointer.
type Weights = *map[string]int

// Able is a set of nodes. Like Weights, sets are compared by identity.
type Able = *map[string]bool

// Reason is why a list changed.
type Reason string

// The reasons, by precedence.
const (
	// Unchanged: the list is as before.
	Unchanged Reason = "Unchanged"
	// Created: the unit is new.
	Created Reason = "Created"
	// NoEligibleNode: no node may announce the unit any more.
	NoEligibleNode Reason = "NoEligibleNode"
	// OwnerNotEligible: the first node may no longer announce the unit.
	OwnerNotEligible Reason = "OwnerNotEligible"
	// OwnerLeads: the speakers elected another node than the first, and it leads now.
	OwnerLeads Reason = "OwnerLeads"
	// OwnerNotReady: there is no owner, and the first node is not ready.
	OwnerNotReady Reason = "OwnerNotReady"
	// OwnerCordoned: there is no owner, and the first node is cordoned.
	OwnerCordoned Reason = "OwnerCordoned"
	// Rebalanced: moved to a preferred or less loaded node on request.
	Rebalanced Reason = "Rebalanced"
	// Drained: moved away from a cordoned node.
	Drained Reason = "Drained"
	// NodesChanged: other nodes joined or left the list.
	NodesChanged Reason = "NodesChanged"
	// Spread: only the order after the first changed, so that a failure spreads.
	Spread Reason = "Spread"
)

// List is the decision for one unit.
type List struct {
	Unit string
	// Nodes in order of preference. Empty: no node is eligible.
	Nodes  []string
	Reason Reason
}

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

// entry is a unit during the decision.
type entry struct {
	unit     Unit
	eligible *nodeSet
	good     bool     // unit.Previous has eligible nodes only, each once
	most     int      // the limit of the list, 0 if it has all eligible nodes
	nodes    []string // shared with unit.Previous while equal: never changed in place
	reason   Reason
}

// rank orders the candidates: lower first.
type rank int

const (
	fit rank = iota
	cordoned
	notReady
)

// nodeSet is a set of known nodes. Two sets with the same nodes are the same pointer.
type nodeSet struct {
	names []string // sorted
	has   map[string]bool
	seen  map[string]int // by holds: the last round that found the node
	round int
}

// nodeSets reads each list of names once: thousands of units share the same few.
type nodeSets struct {
	known   map[string]struct{}
	bySlice map[sliceKey]*nodeSet
	byNames map[string]*nodeSet
}

// sliceKey identifies a slice that does not change while the key is kept.
type sliceKey struct {
	data *string
	len  int
}

// able reports whether the node can answer as far as known.
func (u *Unit) able(node string) bool { return u.Able == nil || (*u.Able)[node] }

// weight returns the preference weight of the node.
func (u *Unit) weight(node string) int {
	if u.Weights == nil {
		return 0
	}
	return (*u.Weights)[node]
}

// prefer orders nodes by weight, the greatest first.
func (u *Unit) prefer(a, b string) int { return cmp.Compare(u.weight(b), u.weight(a)) }

// byHash orders nodes in a unit-specific order that does not depend on the other nodes.
func (u *Unit) byHash(a, b string) int {
	return cmp.Or(cmp.Compare(hash(u.Name, a), hash(u.Name, b)), cmp.Compare(a, b))
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

func rankOf(n Node) rank {
	switch {
	case !n.Ready:
		return notReady
	case n.Cordoned:
		return cordoned
	}
	return fit
}

func keyOf(names []string) sliceKey { return sliceKey{unsafe.SliceData(names), len(names)} }

// renew returns sets of these nodes. It keeps the existing ones as long as the names are the same.
func (s *nodeSets) renew(nodes map[string]rank) *nodeSets {
	if s != nil && len(s.known) == len(nodes) {
		same := true
		for name := range nodes {
			if _, ok := s.known[name]; !ok {
				same = false
				break
			}
		}
		if same {
			clear(s.bySlice)
			return s
		}
	}
	known := make(map[string]struct{}, len(nodes))
	for name := range maps.Keys(nodes) {
		known[name] = struct{}{}
	}
	return &nodeSets{known: known, bySlice: map[sliceKey]*nodeSet{}, byNames: map[string]*nodeSet{}}
}

// of returns the set of the names that are known nodes.
func (s *nodeSets) of(names []string) *nodeSet {
	key := keyOf(names)
	if set := s.bySlice[key]; set != nil {
		return set
	}
	var in []string
	for _, n := range names {
		if _, ok := s.known[n]; ok {
			in = append(in, n)
		}
	}
	slices.Sort(in)
	in = slices.Compact(in)
	text := strings.Join(in, "\x00")
	set := s.byNames[text]
	if set == nil {
		set = &nodeSet{names: in, has: make(map[string]bool, len(in)), seen: make(map[string]int, len(in))}
		for _, n := range in {
			set.has[n] = true
		}
		s.byNames[text] = set
	}
	s.bySlice[key] = set
	return set
}

// holds reports whether all the names are in the set, each at most once.
func (s *nodeSet) holds(names []string) bool {
	s.round++
	for _, n := range names {
		if !s.has[n] || s.seen[n] == s.round {
			return false
		}
		s.seen[n] = s.round
	}
	return true
}
