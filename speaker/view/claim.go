package view

import (
	"crypto/sha256"
	"encoding/binary"
)

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
