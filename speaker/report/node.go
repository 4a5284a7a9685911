package report

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

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
