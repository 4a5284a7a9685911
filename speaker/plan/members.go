package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"time"
)

// Members is what the speakers know of one another, without the API server (docs/design/failover.md).
type Members struct {
	// Observer is set while this node must claim nothing: it has just started, or woke up late.
	Observer bool
	// Isolated are the interfaces of this node on which it hears nobody although others hear one another there.
	Isolated map[string]struct{}
	// Segments are the interfaces on which others are listened for; on another one it is not known yet who answers. Nil means
	// all of them.
	Segments map[string]struct{}
	// Returned is how often one was heard again that had fallen silent, at all or on a segment, and was not restarted: it may have answered
	// for anything meanwhile.
	Returned int
	// Peers are the other nodes that were heard of since this process began, by name.
	Peers map[string]Member
}

// informed tells whether somebody else is heard, and all claims of everybody who is are known. A node that is not may be cut
// off, or just come back from that.
func (m Members) informed() bool {
	heard := false
	for _, p := range m.Peers {
		if p.Alive && !p.Synced {
			return false
		}
		heard = heard || p.Alive
	}
	return heard
}

// listened tells whether somebody who is heard hears this node.
func (m Members) listened() bool {
	for _, p := range m.Peers {
		if p.Alive && !p.Away && !p.Observer && len(p.Deaf) < len(p.On) {
			return true
		}
	}
	return false
}

// Member is another node as it was heard.
type Member struct {
	// Alive is set if it was heard lately on any path.
	Alive bool
	// Away is set while its speaker is replaced: it answers for what it claims, and can take nothing over.
	Away bool
	// On are the interfaces of this node on which it counts as alive, Deaf those of them on which it says that it does not hear this node.
	On, Deaf map[string]struct{}
	// Observer and Leaving are what it says of itself: it must claim nothing yet; it is about to end.
	Observer, Leaving bool
	// Synced is set once all its claims are known.
	Synced bool
	// Returned is set if it counted as dead until just now, and was not restarted: it may claim what it does not know
	// that others took.
	Returned bool
	// Claims are what it says of VirtualIPs.
	Claims map[VIPID]Claim
}

// VIPID names a VirtualIP in messages between speakers.
type VIPID uint64

// IDOf returns the first eight bytes of the SHA-256 of a VirtualIP's name.
func IDOf(vip string) VIPID {
	sum := sha256.Sum256([]byte(vip))
	return VIPID(binary.BigEndian.Uint64(sum[:]))
}

// Claim is what a node says of one VirtualIP.
type Claim struct {
	State ClaimState
	// Generation of the list that it goes by, and its own place in it.
	Generation int64
	Place      uint16
	// Successor, with Leaving, is who is asked to take over.
	Successor string
}

// ClaimState is what a node does about a VirtualIP in whose list it is.
type ClaimState uint8

const (
	// Held: it answers.
	Held ClaimState = iota + 1
	// Leaving: it answers until its successor does.
	Leaving
	// Declined: it does not answer and will not.
	Declined
)

// Word is what this node tells the others. It is whole each time; what is not in it is no longer said.
type Word struct {
	Claims map[string]Claim // by the name of the VirtualIP
	// Leaving is set when the process is about to end.
	Leaving bool
}

// Conflict is another host that answers for an address of ours.
type Conflict struct {
	// MAC is its hardware address, Interface ours on which it was heard.
	MAC       string
	Interface string
	Since     time.Time
}

// Proxy is a host that answers for every address on a network of ours (proxy ARP).
type Proxy struct {
	// MAC is its hardware address, Interface ours on which it was received, Family IPv4 or IPv6.
	MAC, Interface, Family string
	Since                  time.Time
}

// Link is a network interface that is up, has carrier and can carry ARP or NDP.
type Link struct {
	Name string
	// Subnets are those of its addresses, without link-local ones.
	Subnets []netip.Prefix
}
