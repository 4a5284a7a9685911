package plan

import (
	"cmp"
	"slices"
	"time"
)

// election collects the inputs of the election of one VirtualIP.
func (p *Planner) election(v *View, name string, vip VIP, now time.Time) *election {
	d := &election{
		unit: p.unit(v, vip), vip: vip, self: p.options.Node, now: now, interval: cmp.Or(p.options.Interval, defaultInterval),
		observers: map[string]bool{}, declined: map[string]bool{}, ownership: p.vips[name].ownership, informedAt: p.informedAt,
	}
	d.segments, d.alone = d.allUsable(), true
	d.recordMembers(IDOf(name))
	d.blocker = d.whyNot()
	since(&d.ownership.parted, d.isolatedInPart(), now)
	d.partial = !d.ownership.parted.IsZero() && d.waits(d.ownership.parted.Add(partWait*d.interval), PartlyIsolated) != ""
	if terminating := d.choose(false); terminating {
		d.choose(true)
	}
	if d.blocker == Owner && d.releaseReason == NoLocalEndpoint && !d.hasEndpoints(d.self, true) {
		d.blocker = NoLocalEndpoint
	}
	return d
}

// whyNot returns the blocker of this node, independent of the other nodes.
func (d *election) whyNot() Reason {
	switch {
	case len(d.addrs) == 0:
		return NoService
	case len(d.vip.Nodes) == 0:
		return NoEligibleNode
	case d.view.Members.Observer:
		return Observer
	case !d.advertisedAt(d.view.Nodes[d.self].Labels):
		return NoAdvertisement
	}
	for _, a := range d.addrs {
		if len(d.on[a.IP]) == 0 {
			return NoInterface
		}
		if len(d.usable(a.IP)) == 0 {
			return Isolated
		}
	}
	for _, a := range d.addrs {
		if why, unable := d.view.Unable[a.IP]; unable {
			return why
		}
	}
	return Owner
}

// recordMembers records the claims of other nodes, as far as these are reachable where it counts.
func (d *election) recordMembers(id VIPID) {
	for name, m := range d.view.Members.Peers {
		c, claimed := m.Claims[id]
		if claimed {
			d.claimants = append(d.claimants, name)
		}
		if !d.receives(m) {
			continue
		}
		d.alone = false
		asymmetric := d.asymmetricTo(m)
		switch {
		case claimed && (c.State == Declined || asymmetric && !d.view.Nodes[name].Ready): // unreachable for Kubernetes, too
			d.declined[name] = true
		case claimed:
			d.otherOwners = append(d.otherOwners, otherOwner{node: name, claim: c, asymmetric: asymmetric, returned: m.Returned})
		}
		if m.Observer {
			d.observers[name] = true
		} else if !m.Synced && (slices.Contains(d.vip.Nodes, name) || name == d.vip.ReportedOwner) {
			d.unsure = true
		}
	}
	slices.SortFunc(d.otherOwners, otherOwner.compare)
}

// reachable reports whether another node is reachable.
func (d *election) reachable(node string) bool { return d.receives(d.view.Members.Peers[node]) }

// receives reports whether a member counts as alive: on one of this node's interfaces for the VirtualIP, or on any path
// if it has none of them to receive on.
func (d *election) receives(m Member) bool {
	if !m.Alive {
		return false
	}
	for name := range d.segments {
		if _, is := m.On[name]; is {
			return true
		}
	}
	return len(d.segments) == 0
}

// asymmetricTo reports whether an alive member does not receive this node on any interface that counts: an asymmetric
// link.
func (d *election) asymmetricTo(m Member) bool {
	for name := range d.segments {
		_, on := m.On[name]
		if _, asymmetric := m.Asymmetric[name]; on && !asymmetric {
			return false
		}
	}
	return len(m.Asymmetric) > 0
}

// choose lists the candidates. With terminating set they include nodes whose endpoints terminate, and this node if it
// does not reach every network. It reports whether these are needed.
func (d *election) choose(terminating bool) bool {
	d.candidates, d.releaseReason = nil, Owner
	lacking := false
	for _, n := range d.vip.Nodes {
		why := d.against(n, terminating)
		if n == d.self {
			if why == Owner && d.partial && !terminating {
				why = PartlyIsolated
			}
			d.releaseReason = why
		}
		if why == Owner && (n != d.self || d.blocker == Owner) {
			d.candidates = append(d.candidates, n)
		}
		lacking = lacking || why == NoLocalEndpoint || why == PartlyIsolated
	}
	switch {
	case d.view.Leaving:
		d.releaseReason = Stopping
	case !slices.Contains(d.vip.Nodes, d.self):
		d.releaseReason = NotListed
	}
	return lacking && len(d.candidates) == 0
}

// against returns why a listed node is no candidate, Owner if it is one.
func (d *election) against(node string, terminating bool) Reason {
	if node != d.self {
		m := d.view.Members.Peers[node]
		switch {
		case !d.reachable(node) || m.Away:
			return NodeNotAlive
		case m.Leaving:
			return Stopping
		}
	} else if d.view.Leaving {
		return Stopping
	}
	if why := d.able(node, terminating); why != Owner || node == d.self {
		return why
	}
	if d.declined[node] {
		return NodeDeclined
	}
	return Owner
}

// dependsOn returns the nodes whose liveness and API state affect the decision. They are few while the VirtualIP has an
// owner. So a membership change costs in proportion to what the node owned, not to the lists that contain it.
func (d *election) dependsOn() map[string]struct{} {
	out := map[string]struct{}{d.self: {}}
	for _, n := range d.claimants {
		out[n] = struct{}{}
	}
	others := d.vip.Nodes
	switch {
	case d.blocker == Observer: // no decision yet
		return out
	case len(d.local) > 0: // a node with a terminating endpoint counts if no node has another one
	case !d.ownership.held && len(d.otherOwners) > 0 && len(d.addrs) > 0:
		return out
	case d.ownership.held && d.releaseReason == Owner && !d.partial && (d.vip.ReportedOwner == "" || d.vip.ReportedOwner == d.self):
		others = before(d.vip.Nodes, d.self) // nodes that may be asked to take over
	}
	for _, n := range others {
		out[n] = struct{}{}
	}
	if d.vip.ReportedOwner != "" {
		out[d.vip.ReportedOwner] = struct{}{}
	}
	return out
}

// nearness ranks the reasons by how close the node came to ownership.
var nearness = map[Reason]int{
	NoEligibleNode: 0, NodeNotAlive: 1, Observer: 2, Stopping: 3, Excluded: 4, NotListed: 4, NoAdvertisement: 5, NoLocalEndpoint: 6,
	PartlyIsolated: 6,
	NodeDeclined:   7, NoInterface: 8, Isolated: 9, DataPlaneNotReady: 10, KernelAnswers: 11, AddressConflict: 12,
}

// decision returns the observed outcome once the ownership is decided.
func (d *election) decision() Decision {
	t := &d.ownership
	dec := Decision{Reason: d.blocker, Moved: t.moved, At: t.at, From: t.from, Vacant: t.vacant, Asymmetric: d.asymmetric}
	for _, a := range d.addrs {
		dec.Addresses = append(dec.Addresses, a.IP)
	}
	switch {
	case t.held:
		dec.Owner, dec.Reason = d.self, Owner
	case len(d.addrs) == 0:
	case len(d.otherOwners) > 0:
		dec.Owner, dec.Reason = d.otherOwners[0].node, NotOwner
	case d.blocker == Observer:
	case t.barred != "":
		dec.Owner, dec.Reason = t.barred, NotOwner
	case len(d.candidates) > 0:
		dec.Reason = Waiting
	default:
		dec.Reason = d.nearest()
	}
	if dec.Reason == NoLocalEndpoint {
		dec.Local = d.whereLocal()
	}
	dec.Reporter = d.reports(dec.Owner)
	dec.Rival = d.rival
	return dec
}

// nearest returns the reason of the node that came closest to ownership.
func (d *election) nearest() Reason {
	why := NoEligibleNode
	for _, n := range d.vip.Nodes {
		reason := d.against(n, true)
		if n == d.self {
			reason = d.releaseReason
			if d.blocker != Owner {
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
	if d.ownership.moved == OwnerLost && d.ownership.at.After(since) {
		since = d.ownership.at
	}
	return d.waits(since.Add(contest*d.interval), Owner) == ""
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
	if named == "" || named == d.self || d.view.Members.informed() {
		return false
	}
	if d.ownership.reported && !d.reachable(named) {
		d.rival = named
	}
	return d.ownership.reported || d.view.Nodes[named].Ready
}
