package plan

import "net/netip"

// NodeCondition is a condition of this node, beside what the loop reports in NodeStatus.
type NodeCondition struct {
	Type            string
	True            bool
	Reason, Message string
}

// NodeStatus is what a speaker says of its node.
type NodeStatus struct {
	// Healthy is set while all is programmed as planned; else Reason and Message say why not.
	Healthy bool
	Reason  Reason
	Message string
	// VirtualIPs is how many this node answers for.
	VirtualIPs int
	// Links are the interfaces that have a subnet or are named for an address, Members the other speakers.
	Links   map[string]Link
	Members map[string]MemberState
	// Gateways are those of the node, sorted.
	Gateways []netip.Addr
	// Reach is what is known of the way to other nodes, Unreachable counts the endpoints on unreachable ones.
	Reach       Reachability
	Unreachable map[string]UnreachableEndpoints
	// Sessions are those of BGP by the name of the BGPPeer: one for each that selects this node, also if it cannot be tried.
	Sessions map[string]Session
	// LocalPrefs are the contradictions of BGPAdvertisements that this node met, with the number of prefixes.
	LocalPrefs map[LocalPrefs]int
	// Unserved are the addresses that a BGPAdvertisement covers and of which this node is to say that nobody is served by them.
	Unserved map[Reason]Unserved
}

// Unserved are addresses by which nobody is served for one reason. It is not changed once it is made.
type Unserved struct {
	// Message says what the reason means, and how to mend it.
	Message string
	// Addresses are all of them, sorted.
	Addresses []netip.Addr
}

// MemberState is how another speaker is heard.
type MemberState string

// The states, of which the first that is true counts.
const (
	MemberSilent   MemberState = "Silent"
	MemberObserver MemberState = "Observer"
	MemberLeaving  MemberState = "Leaving"
	MemberIsolated MemberState = "Isolated"
	MemberAlive    MemberState = "Alive"
)

// State returns how the member is heard, given the interfaces on which it should be: one that is heard on another path alone counts as isolated.
func (m Member) State(segments map[string]struct{}) MemberState {
	heard := len(segments) == 0
	for name := range segments {
		if _, on := m.On[name]; on {
			heard = true
		}
	}
	switch {
	case !m.Alive:
		return MemberSilent
	case m.Observer:
		return MemberObserver
	case m.Leaving:
		return MemberLeaving
	case !heard:
		return MemberIsolated
	}
	return MemberAlive
}
