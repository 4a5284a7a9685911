package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"time"
)

// Members is the observed state of the other members, without the API server (docs/design/failover.md).
type Members struct {
	// Observer is set while this node must claim nothing: it has just started, or resumed after a stall.
	Observer bool
	// Isolated are the interfaces on which this node receives no member although others receive one another there.
	Isolated map[string]struct{}
	// Segments are the interfaces on which members are received; the owners on any other one are not known yet. Nil
	// means all interfaces.
	Segments map[string]struct{}
	// Returned counts how often a member became reachable again, overall or on a segment, without a restart: it may
	// have answered for any address meanwhile.
	Returned int
	// Peers are the other nodes received since this process began, by name.
	Peers map[string]Member
}

// informed reports whether a member is reachable and all claims of all reachable members are known. Otherwise this node
// may be cut off, or has just recovered from that.
func (m Members) informed() bool {
	received := false
	for _, p := range m.Peers {
		if p.Alive && !p.Synced {
			return false
		}
		received = received || p.Alive
	}
	return received
}

// received reports whether a reachable member receives this node.
func (m Members) received() bool {
	for _, p := range m.Peers {
		if p.Alive && !p.Away && !p.Observer && len(p.Asymmetric) < len(p.On) {
			return true
		}
	}
	return false
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

// LocalState is the state that this node publishes to the other members. It is complete each time; a claim that it
// lacks is withdrawn.
type LocalState struct {
	Claims map[string]Claim // by the name of the VirtualIP
	// Leaving is set when the process is about to end.
	Leaving bool
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

// Link is a network interface that is up, has carrier and can carry ARP or NDP.
type Link struct {
	Name string
	// Subnets are those of its addresses, without link-local ones.
	Subnets []netip.Prefix
}
