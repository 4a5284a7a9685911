package plan

import (
	"net/netip"
	"slices"
	"time"
)

// Reachability is what this node found out about the way to the other ones (docs/design/unreachable.md). It is not changed
// once it is made.
type Reachability struct {
	// Unreachable nodes by name: their endpoints take no new connections.
	Unreachable map[string]UnreachableNode
	// Unwitnessed are the nodes whose speaker is, or was, received and whose kernel answers no question: their endpoints
	// are left to Kubernetes.
	Unwitnessed map[string]struct{}
	// CutOff reports that this node may be cut off itself, so that nothing changes.
	CutOff bool
}

// UnreachableNode says why a node counts as unreachable.
type UnreachableNode struct {
	// Since is when that was decided.
	Since time.Time
	// Silent are the witnesses that do not answer, in order.
	Silent []Witness
	// Gateway answered where this node might have been cut off itself; not valid where that was not in question.
	Gateway netip.Addr
	// Damped reports that the node is reachable, and was unreachable so often that this does not count yet.
	Damped bool
}

// Equal reports whether two are the same.
func (u UnreachableNode) Equal(v UnreachableNode) bool {
	return u.Since.Equal(v.Since) && slices.Equal(u.Silent, v.Silent) && u.Gateway == v.Gateway && u.Damped == v.Damped
}

// Witness is how the kernel of another host is asked whether it is there. The same value goes into logs and the API.
type Witness string

const (
	// WitnessEcho is ICMP echo (RFC 792) or ICMPv6 echo (RFC 4443 section 4).
	WitnessEcho Witness = "ICMPEcho"
	// WitnessNeighbor is ARP (RFC 826) or neighbor discovery (RFC 4861), for hosts on a network of this node.
	WitnessNeighbor Witness = "Neighbor"
)
