package ownership

import (
	"net/netip"

	"github.com/ironlb/ironlb/speaker/view"
)

// Owners are the owners of the VirtualIPs, as one node decides and observes them, and what follows for this node.
type Owners struct {
	// VIPs are the decisions by the name of the VirtualIP.
	VIPs map[string]Decision
	// Announce are the L2 addresses to announce, once they are programmed.
	Announce map[netip.Addr]Announcement
	// Claims are the claims to publish to the other members, Segments the interfaces on which to receive these.
	Claims   map[string]view.Claim
	Segments map[string]struct{}
}

// NewOwners returns Owners of no VirtualIP.
func NewOwners() Owners {
	return Owners{VIPs: map[string]Decision{}, Announce: map[netip.Addr]Announcement{}, Claims: map[string]view.Claim{}, Segments: map[string]struct{}{}}
}

// ChangedOwners names the parts of Owners that may differ from the last plan.
type ChangedOwners struct {
	// VIPs of VIPs and Claims.
	VIPs map[string]struct{}
	// Announce are the addresses whose announcement changed.
	Announce map[netip.Addr]struct{}
	// Segments is set if they differ.
	Segments bool
}
