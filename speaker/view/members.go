package view

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// Members is the observed state of the other members, without the API server (docs/design/failover.md).
type Members struct {
	// Observer is set while this node must claim nothing: it has just started, or resumed after a stall.
	Observer bool
	// Fences counts how often this node had to release everything. It claims and answers again only after a publication
	// of its claims.
	Fences uint64
	// Isolated are the interfaces on which this node receives no member although others receive one another there.
	Isolated map[string]struct{}
	// Segments are the interfaces on which members are received; the owners on any other one are not known yet. Nil
	// means all interfaces.
	Segments map[string]struct{}
	// Returned counts how often a member became reachable again, overall or on a segment, without a restart: it may
	// have answered for any address meanwhile.
	Returned int
	// Interval is this node's heartbeat interval, Dead its dead time: those of the profile, longer in a large cluster. 0:
	// unknown.
	Interval, Dead time.Duration
	// Peers are the other nodes received since this process began, by name.
	Peers map[string]Member
}

// Informed reports whether a member is reachable and all claims of all reachable members are known. Otherwise this node
// may be cut off, or has just recovered from that.
func (m Members) Informed() bool {
	received := false
	for _, p := range m.Peers {
		if p.Alive && !p.Synced {
			return false
		}
		received = received || p.Alive
	}
	return received
}

// Received reports whether a reachable member receives this node.
func (m Members) Received() bool {
	for _, p := range m.Peers {
		if p.Alive && !p.Away && !p.Observer && len(p.Asymmetric) < len(p.On) {
			return true
		}
	}
	return false
}

// Directs reports whether packets can be sent to a node through a tunnel, according to its speaker, with ipv6 also IPv6
// packets. A node that was never received cannot; while this node is an observer it may not have been received yet, and
// counts.
func (m Members) Directs(node string, ipv6 bool) bool {
	peer, received := m.Peers[node]
	return peer.Direct && !(ipv6 && peer.DirectIPv4Only) || !received && m.Observer
}

// Member is the observed state of another node.
type Member struct {
	// Alive is set if it was received recently on any path.
	Alive bool
	// Away is set while its speaker is being replaced: it answers for its claims and cannot take over.
	Away bool
	// On are the interfaces of this node on which it counts as alive. Asymmetric are those of them with an asymmetric
	// link: it reports that it does not receive this node there.
	On, Asymmetric map[string]struct{}
	// Observer and Leaving are its reported state: it must claim nothing yet; its process is about to end.
	Observer, Leaving bool
	// Direct is set if it last reported that it can receive packets through tunnels, DirectIPv4Only if that is so for
	// IPv4 only.
	Direct, DirectIPv4Only bool
	// Synced is set once all its claims are known.
	Synced bool
	// Returned is set if it counted as dead until just now and was not restarted: its claims may predate a takeover by
	// others.
	Returned bool
	// Claims are its published claims.
	Claims map[VIPID]Claim
}

// VIPID names a VirtualIP in messages between speakers.
type VIPID uint64

// IDOf returns the first eight bytes of the SHA-256 of a VirtualIP's name.
func IDOf(vip string) VIPID {
	sum := sha256.Sum256([]byte(vip))
	return VIPID(binary.BigEndian.Uint64(sum[:]))
}

// Claim is the published state of one VirtualIP on one node.
type Claim struct {
	State ClaimState
	// Generation is that of the node list in use, Rank the node's rank in that list.
	Generation int64
	Rank       uint16
	// Successor, with HandingOver, is the node that is asked to take over.
	Successor string
}

// Announces reports whether the node announces the VirtualIP.
func (c Claim) Announces() bool { return c.State == Held || c.State == HandingOver }

// ClaimState is the state of a VirtualIP on a node of its list.
type ClaimState uint8

const (
	// Held: the node answers.
	Held ClaimState = iota + 1
	// HandingOver: the node answers until its successor does.
	HandingOver
	// Declined: the node does not answer and will not.
	Declined
)

// String returns the name of the state.
func (s ClaimState) String() string {
	return map[ClaimState]string{Held: "Held", HandingOver: "HandingOver", Declined: "Declined"}[s]
}

// LocalState is the state that this node publishes to the other members. It is complete each time; a claim that it
// lacks is withdrawn.
type LocalState struct {
	Claims map[string]Claim // by the name of the VirtualIP
	// Leaving is set when the process is about to end.
	Leaving bool
	// Direct is set if this node can receive packets through tunnels, DirectIPv4Only if that is so for IPv4 only.
	Direct, DirectIPv4Only bool
}

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
}

// Equal reports whether both are the same.
func (u UnreachableNode) Equal(v UnreachableNode) bool {
	return u.Since.Equal(v.Since) && slices.Equal(u.Silent, v.Silent) && u.Gateway == v.Gateway
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

// Conflict is another host that answers for a virtual address.
type Conflict struct {
	// MAC is its hardware address, Interface the local interface that received it.
	MAC       string
	Interface string
	Since     time.Time
}

// Proxy is a host that answers for every address on a network of this node (proxy ARP).
type Proxy struct {
	// MAC is its hardware address, Interface the local interface that received it, Family IPv4 or IPv6.
	MAC, Interface, Family string
	Since                  time.Time
}
