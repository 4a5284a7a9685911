package ownership

import (
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// claimants returns the other nodes with a claim of these VirtualIPs. Otherwise each decision would read every node.
func claimants(ids map[view.VIPID]struct{}, m *view.Members) map[view.VIPID][]string {
	x := map[view.VIPID][]string{}
	for name, p := range m.Peers {
		if len(ids) < len(p.Claims) {
			for id := range ids {
				if _, claimed := p.Claims[id]; claimed {
					x[id] = append(x[id], name)
				}
			}
			continue
		}
		for id := range p.Claims {
			if _, wanted := ids[id]; wanted {
				x[id] = append(x[id], name)
			}
		}
	}
	return x
}

// recordMembers records the claims of other nodes, as far as these are reachable where it counts.
func (d *election) recordMembers(id view.VIPID, claimants []string) {
	peers := d.view.Members.Peers
	d.claimants = claimants
	for _, name := range d.claimants {
		m := peers[name]
		if !d.receives(m) {
			if m.Claims[id].State == view.Held && d.oneWay(m) {
				d.asymmetric = name
			}
			continue
		}
		c, asymmetric := m.Claims[id], d.asymmetricTo(m)
		switch {
		case c.State == view.Declined || asymmetric && !d.view.Nodes[name].Ready: // unreachable for Kubernetes, too
			d.declined[name] = true
		default:
			d.otherOwners = append(d.otherOwners, otherOwner{node: name, claim: c, asymmetric: asymmetric, returned: m.Returned})
		}
	}
	slices.SortFunc(d.otherOwners, otherOwner.compare)
	for _, m := range peers {
		if d.receives(m) {
			d.alone = false
			break
		}
	}
}

// unsure reports whether a claim of the reported owner, or of a node of the list, may be unknown.
func (d *election) unsure() bool {
	return d.unsynced(d.vip.ReportedOwner) || slices.ContainsFunc(d.vip.Nodes, d.unsynced)
}

// unsynced reports whether another node is reachable, no observer, and not all of its claims are known.
func (d *election) unsynced(node string) bool {
	m := d.view.Members.Peers[node]
	return !m.Observer && !m.Synced && d.receives(m)
}

// observes reports whether another node is reachable and an observer.
func (d *election) observes(node string) bool {
	m := d.view.Members.Peers[node]
	return m.Observer && d.receives(m)
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

// oneWay reports whether a member that receives no node counts as dead for that reason.
func (d *election) oneWay(m view.Member) bool {
	for name := range d.segments {
		if _, asymmetric := m.Asymmetric[name]; asymmetric {
			return m.Alive
		}
	}
	return false
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
