// Package report has the values that a speaker publishes: VIPStatus for each VirtualIP that it reports, and NodeStatus
// for its node, with its interfaces, the other members, its BGP sessions and the addresses that it could not program.
//
// speaker/status composes them from the plan and its outcome; speaker/kube writes them to the API server. Every reason
// is a view.Reason. A value is complete: what it does not contain no longer holds.
package report

import (
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// VIPStatus is the published state of a VirtualIP, written by its reporter.
type VIPStatus struct {
	// Node announces the addresses on Interfaces; empty for none.
	Node       string
	Interfaces []string
	Announced  bool
	Reason     view.Reason
	Message    string
	// Moved is why it came here at At, From another node; Cause is why that was lost, with OwnerLost.
	Moved view.Reason
	At    time.Time
	From  string
	Cause view.Reason
	// Took is how long clients had no answer, with OwnerLost: from the last message of a dead owner, otherwise from its
	// release, until a reconcile ended that announced the addresses. Zero if unknown.
	Took time.Duration
	// Conflict describes the other hosts or nodes that answer for an address, empty if none is known; ConflictReason
	// distinguishes hosts from nodes.
	Conflict       string
	ConflictReason view.Reason
	// NotDirect describes why a Service of it that is to be forwarded directly is not, empty for none.
	NotDirect       string
	NotDirectReason view.Reason
	// Hosts are the addresses for which other hosts answer, in order.
	Hosts []HostConflict
}

// HostConflict is an address for which another host answers, with its hardware address and the interface that received
// it.
type HostConflict struct {
	Addr           netip.Addr
	MAC, Interface string
}

// NodeCondition is a condition of this node, in addition to the loop's NodeStatus.
type NodeCondition struct {
	Type            string
	True            bool
	Reason, Message string
}

// NodeStatus is the status of a node, as published by its speaker.
type NodeStatus struct {
	// Healthy is set while the node is programmed as planned; otherwise Reason and Message explain why not.
	Healthy bool
	Reason  view.Reason
	Message string
	// Tunnels are those of direct forwarding, nil if the speaker has no driver for it.
	Tunnels *view.Tunnels
	// SlotsDiffer are the nodes that direct connections to other nodes than this one, for long; sorted and immutable.
	SlotsDiffer []string
	// ReturnRoutes are those of the pools, sorted and immutable.
	ReturnRoutes []view.PoolReturn
	// VirtualIPs is the number that this node owns.
	VirtualIPs int
	// Dead is the dead time of the speaker, 0 if unknown.
	Dead time.Duration
	// Links are the interfaces with a subnet or used for an address, Members the other speakers.
	Links   map[string]view.Link
	Members map[string]MemberState
	// Gateways are those of the node, sorted.
	Gateways []netip.Addr
	// Reach is the reachability of other nodes. Unreachable counts the endpoints on unreachable ones.
	Reach       view.Reachability
	Unreachable map[string]view.UnreachableEndpoints
	// Sessions are the BGP sessions by the name of the BGPPeer, one for each that selects this node, even an impossible
	// one.
	Sessions map[string]routes.Session
	// LocalPrefs are the contradictions of BGPAdvertisements on this node, with the number of prefixes.
	LocalPrefs map[routes.LocalPrefs]int
	// Families are those that the node announces over each session; none for an impossible one.
	Families map[string]SessionFamilies
	// Unserved are the addresses that a BGPAdvertisement covers and that this node could not program, sorted. They are
	// immutable.
	Unserved map[view.Reason][]netip.Addr
	// NotDirect are the addresses that only BGP announces and whose Services are to be forwarded directly and are not.
	// They are immutable.
	NotDirect map[view.Reason]NotDirect
}

// NotDirect are addresses that are forwarded to endpoints for one reason, sorted. The message explains it for one of
// their Services.
type NotDirect struct {
	Message   string
	Addresses []netip.Addr
}

// SessionFamilies are the families that a session is configured for.
type SessionFamilies struct{ IPv4, IPv6 bool }

// MemberState is the state of another member.
type MemberState string

// The states; the first that applies counts.
const (
	MemberSilent   MemberState = "Silent"
	MemberObserver MemberState = "Observer"
	MemberLeaving  MemberState = "Leaving"
	MemberIsolated MemberState = "Isolated"
	MemberAlive    MemberState = "Alive"
)

// StateOf returns the state of a member, given the interfaces on which it should be received. A member received only on
// another path is isolated.
func StateOf(m view.Member, segments map[string]struct{}) MemberState {
	received := len(segments) == 0
	for name := range segments {
		if _, on := m.On[name]; on {
			received = true
		}
	}
	switch {
	case !m.Alive:
		return MemberSilent
	case m.Observer:
		return MemberObserver
	case m.Leaving:
		return MemberLeaving
	case !received:
		return MemberIsolated
	}
	return MemberAlive
}

// settledAfter is how long after a node becomes unreachable its liveness counts as settled, unless the dead time is
// longer. In a large cluster its kernel is found silent before the heartbeats that other nodes received last expire.
const settledAfter = 2 * time.Second

// WritesReach reports whether the speaker of a node must write the Event that another node is unreachable. While that
// is not decided, it is to be called again with each later status.
func WritesReach(node, about string, status NodeStatus, now time.Time) (writes, decided bool) {
	if state, known := status.Members[about]; known && state != MemberSilent { // others receive it, or did until just now
		return true, now.Sub(status.Reach.Unreachable[about].Since) >= max(settledAfter, status.Dead)
	}
	for name, state := range status.Members {
		_, unreachable := status.Reach.Unreachable[name]
		if name < node && state != MemberSilent && !unreachable {
			return false, true
		}
	}
	return true, true
}

const (
	// ListAll is the number of members up to which a node's status lists all of them.
	ListAll = 32
	// Neighbors is how many members on each side a status lists otherwise.
	Neighbors = 4
)

// Listed returns whether the status of a node lists another node. With more than ListAll members it lists only its
// neighbors: the members and it form a ring, ordered by a hash of their names. Two members list each other or neither
// does. So the death of a node changes a fixed number of statuses, however large the cluster is, and the sizes of all
// statuses grow with the cluster, not with its square.
func Listed(node string, members map[string]MemberState) func(other string) bool {
	n := len(members)
	if n <= ListAll {
		return func(string) bool { return true }
	}
	ring := make([]uint64, 0, n)
	for name := range members {
		ring = append(ring, position(name))
	}
	slices.Sort(ring)
	find := func(p uint64) int { return sort.Search(n, func(i int) bool { return ring[i] >= p }) }
	here := find(position(node))
	return func(other string) bool {
		there, itself := find(position(other)), 0
		if _, is := members[other]; is {
			itself = 1
		}
		after, before := (there-here+n)%n, (here-there-itself+2*n)%n // members between them, on each side
		return min(after, before) < Neighbors
	}
}

// position returns the place of a node on the ring: FNV-1a, mixed by the finalizer of MurmurHash3, so that nodes with
// similar names, often in one rack, are apart.
func position(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
