package ownership

import (
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// recordMembers records the claims of other nodes, as far as these are reachable where it counts.
func (d *election) recordMembers(id view.VIPID) {
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
		case claimed && (c.State == view.Declined || asymmetric && !d.view.Nodes[name].Ready): // unreachable for Kubernetes, too
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
func (d *election) receives(m view.Member) bool {
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
func (d *election) asymmetricTo(m view.Member) bool {
	for name := range d.segments {
		_, on := m.On[name]
		if _, asymmetric := m.Asymmetric[name]; on && !asymmetric {
			return false
		}
	}
	return len(m.Asymmetric) > 0
}
