package view

import (
	"net/netip"
	"slices"
	"time"
)

// Reachability is the reachability of the other nodes from this one (docs/design/unreachable.md). It is immutable.
type Reachability struct {
	// Unreachable nodes by name: their endpoints take no new connections.
	Unreachable map[string]UnreachableNode
	// Unwitnessed are the nodes whose speaker is, or was, received and whose kernel answers no probe: only
	// Kubernetes excludes their endpoints.
	Unwitnessed map[string]struct{}
	// Silent are the interfaces without a received speaker, as far as hosts there are asked.
	Silent map[string]Answers
	// CutOff reports that this node may be cut off itself, so that nothing changes.
	CutOff bool
}

// UnreachableNode explains why a node counts as unreachable.
type UnreachableNode struct {
	// Since is when that was decided.
	Since time.Time
	// Silent are the witnesses that do not answer, in order.
	Silent []Witness
	// Gateway is the gateway that answered when this node might have been cut off itself; invalid if that was not in
	// question.
	Gateway netip.Addr
	// Damped reports that the node is reachable, but was unreachable too often for that to count yet.
	Damped bool
}

// Equal reports whether both are the same.
func (u UnreachableNode) Equal(v UnreachableNode) bool {
	return u.Since.Equal(v.Since) && slices.Equal(u.Silent, v.Silent) && u.Gateway == v.Gateway && u.Damped == v.Damped
}

// Witness is a method to probe the kernel of another host. The same value appears in logs and the API.
type Witness string

const (
	// WitnessEcho is ICMP echo (RFC 792) or ICMPv6 echo (RFC 4443 section 4).
	WitnessEcho Witness = "ICMPEcho"
	// WitnessNeighbor is ARP (RFC 826) or neighbor discovery (RFC 4861), for hosts on a network of this node.
	WitnessNeighbor Witness = "Neighbor"
)

// UnreachableEndpoints counts the endpoints on an unreachable node that are ready, or that terminate and still serve if
// none of their port is ready. It is the sum over the ports of all Services that are served here: an address and port
// counts once for each of them. Endpoints count; nodes that a Service forwards through do not.
type UnreachableEndpoints struct {
	// LeftOut take no new connections; FailedOpen take them, because no other endpoint would remain.
	LeftOut, FailedOpen int
}

// Answers is what hosts on an interface answer.
type Answers struct {
	// None: no host answers any more although some did before, so this node is cut off there until one does.
	None bool
	// First is when the first answered probe was sent, or when there was no host to ask; zero: none is answered yet.
	First time.Time
}
