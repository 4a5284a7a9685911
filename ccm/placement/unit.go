package placement

import (
	"cmp"
	"hash/fnv"
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

// able reports whether the node can answer as far as known.
func (u *Unit) able(node string) bool { return u.Able == nil || (*u.Able)[node] }

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
