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
	// Missing is set with NoInterface: the interfaces that advertisements name and that are not up. Up are those with a
	// subnet that are. Both are sorted.
	Missing, Up []string
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
	// Epoch changes each time the address must be re-announced: another owner has stopped answering, and a neighbor
	// may have learned that one (rule 4 of docs/design/failover.md).
	Epoch int
}

// Equal reports whether two announcements are the same.
func (a Announcement) Equal(b Announcement) bool {
	return a.VIP == b.VIP && a.Probe == b.Probe && a.Epoch == b.Epoch && slices.Equal(a.Interfaces, b.Interfaces)
}

// decision returns the observed outcome once the ownership is decided.
func (d *election) decision() Decision {
	t := &d.ownership
	dec := Decision{Reason: d.blocker, Moved: t.moved, At: t.at, From: t.from, Cause: t.cause, Vacant: t.vacant, Asymmetric: d.asymmetric}
	for _, a := range d.addrs {
		dec.Addresses = append(dec.Addresses, a.IP)
	}
	switch {
	case t.held:
		dec.Owner, dec.Reason = d.self, view.Owner
	case len(d.addrs) == 0:
	case len(d.otherOwners) > 0:
		dec.Owner, dec.Reason = d.otherOwners[0].node, view.NotOwner
	case d.blocker == view.Observer:
	case t.barred != "":
		dec.Owner, dec.Reason = t.barred, view.NotOwner
	case len(d.candidates) > 0:
		dec.Reason = view.Waiting
	default:
		dec.Reason = d.nearest()
	}
	switch dec.Reason {
	case view.NoLocalEndpoint:
		dec.Local = d.whereLocal()
	case view.NoInterface:
		dec.Missing, dec.Up = d.missing()
	}
	dec.Reporter = d.reports(dec.Owner)
	dec.Rival = d.rival
	return dec
}

// nearness ranks the reasons by how close the node came to ownership.
var nearness = map[view.Reason]int{
	view.NoEligibleNode: 0, view.NodeNotAlive: 1, view.Observer: 2, view.Stopping: 3, view.Excluded: 4, view.NotListed: 4, view.NoAdvertisement: 5, view.NoLocalEndpoint: 6,
	view.PartlyIsolated: 6,
	view.NodeDeclined:   7, view.NoInterface: 8, view.Isolated: 9, view.DataPlaneNotReady: 10, view.KernelAnswers: 11, view.AddressConflict: 12,
}

// nearest returns the reason of the node that came closest to ownership.
func (d *election) nearest() view.Reason {
	why := view.NoEligibleNode
	for _, n := range d.vip.Nodes {
		reason := d.against(n, true)
		if n == d.self {
			reason = d.releaseReason
			if d.blocker != noReason {
				reason = d.blocker
			}
		}
		if nearness[reason] > nearness[why] {
			why = reason
		}
	}
	return why
}

// reports reports whether this node writes the status.
func (d *election) reports(owner string) bool {
	if owner == d.self && (d.cutOff() || d.early() || d.elsewhere()) {
		return false
	}
	if owner != "" || d.view.Members.Observer {
		return owner == d.self
	}
	alive := func(n string) bool {
		m := d.view.Members.Peers[n]
		return n == d.self || m.Alive && !m.Away && !m.Observer
	}
	if i := slices.IndexFunc(d.vip.Nodes, alive); i >= 0 {
		return d.vip.Nodes[i] == d.self
	}
	return d.vip.ReportedOwner == d.self
}

// early reports whether it is too early to determine which node is cut off: this one, or the Ready node that the status
// names. If this node has just taken over and is itself cut off, the others become unreachable one by one. Until the
// last one is, this node seems to be in the remaining group. If it has just received others again, the named node may
// follow.
func (d *election) early() bool {
	named := d.vip.ReportedOwner
	if !d.ownership.held || named == "" || named == d.self || !d.view.Nodes[named].Ready {
		return false
	}
	since := d.informedAt
	if d.ownership.moved == view.OwnerLost && d.ownership.at.After(since) {
		since = d.ownership.at
	}
	return !d.passed(since.Add(contest * d.interval))
}

// elsewhere reports whether an owner on the other side of a split network writes the status, because the list ranks it
// first. Both sides reach the API server and would otherwise overwrite each other until the split is resolved.
func (d *election) elsewhere() bool {
	named := d.vip.ReportedOwner
	if !d.ownership.reported || named == d.self || !d.ownsUnreachable(named) {
		return false
	}
	d.rival = named
	return rankOf(d.vip.Nodes, named) < rankOf(d.vip.Nodes, d.self)
}

// cutOff reports whether this node reaches the API server but not the node that seems to be the owner: that node
// overwrote this node's status, or its Node is Ready. That node then writes the status; otherwise the list would follow
// this one.
func (d *election) cutOff() bool {
	named := d.vip.ReportedOwner
	if named == "" || named == d.self || d.view.Members.Informed() {
		return false
	}
	if d.ownership.reported && !d.reachable(named) {
		d.rival = named
	}
	return d.ownership.reported || d.view.Nodes[named].Ready
}
