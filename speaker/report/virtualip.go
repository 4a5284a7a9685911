package report

import (
	"net/netip"
	"time"

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
