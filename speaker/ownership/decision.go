package ownership

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// Decision is the decision about a VirtualIP from one node's point of view.
type Decision struct {
	// Owner is the node that answers, as observed by this node.
	Owner  string
	Reason view.Reason
	// Reporter is set on the one node that writes the VirtualIP's status: the owner; without an owner the first listed
	// node that is alive; without such a node the one that the status names, to retract its claim.
	Reporter bool
	// Addresses that are announced together.
	Addresses []netip.Addr
	// Local is set with NoLocalEndpoint: the nodes with endpoints of each port of a Service with policy Local that has
	// any, in order.
	Local []LocalPort
	// Moved is why the VirtualIP last moved to or from this node, at At; empty if it never did. From is the last
	// observed owner before it came; Cause is why it was lost, with OwnerLost. Vacant is since when there was no owner,
	// zero if there was one.
	Moved  view.Reason
	At     time.Time
	From   string
	Cause  view.Reason
	Vacant time.Time
	// Asymmetric is another owner with an asymmetric link: it does not receive this node, but others do.
	Asymmetric string
	// Rival is an unreachable node that seems to be an owner, too: it overwrote this node's status.
	Rival string
}

// LocalPort is a port of a Service with policy Local in a family, and the nodes of its endpoints, sorted.
type LocalPort struct {
	Service pools.ServiceKey
	Port    string
	IPv4    bool
	Nodes   []string
}

// String returns the port and the family.
func (l LocalPort) String() string {
	family := "IPv6"
	if l.IPv4 {
		family = "IPv4"
	}
	return strings.TrimSpace(l.Port + " " + family)
}

func (l LocalPort) compare(m LocalPort) int {
	return cmp.Or(l.Service.Compare(m.Service), cmp.Compare(l.String(), m.String()))
}

// Announcement is where to announce an address.
type Announcement struct {
	// VIP is the name of the VirtualIP.
	VIP string
	// Interfaces by name, sorted; at least one, all of them up.
	Interfaces []string
	// Probe requests a probe before the first answer: no earlier owner of the address is known.
	Probe bool
	// Epoch changes each time the address must be re-announced: another owner has stopped answering, and a neighbour
	// may have learned that one (rule 4 of docs/design/failover.md).
	Epoch int
}

// Equal reports whether two announcements are the same.
func (a Announcement) Equal(b Announcement) bool {
	return a.VIP == b.VIP && a.Probe == b.Probe && a.Epoch == b.Epoch && slices.Equal(a.Interfaces, b.Interfaces)
}
