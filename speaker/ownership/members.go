package ownership

import (
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// memberIndex is the state of the other nodes that the decisions of one plan depend on. Without it each decision would
// read every node.
type memberIndex struct {
	claimants           map[view.VIPID][]string // of the VirtualIPs of the plan
	observers, unsynced []string
}

// indexMembers indexes the claims of these VirtualIPs.
func indexMembers(m *view.Members, ids map[view.VIPID]struct{}) memberIndex {
	x := memberIndex{claimants: map[view.VIPID][]string{}}
	for name, p := range m.Peers {
		if p.Observer {
			x.observers = append(x.observers, name)
		} else if !p.Synced {
			x.unsynced = append(x.unsynced, name)
		}
		if len(ids) < len(p.Claims) {
			for id := range ids {
				if _, claimed := p.Claims[id]; claimed {
					x.claimants[id] = append(x.claimants[id], name)
				}
			}
			continue
		}
		for id := range p.Claims {
			if _, wanted := ids[id]; wanted {
				x.claimants[id] = append(x.claimants[id], name)
			}
		}
	}
	return x
}

// recordMembers records the claims of other nodes, as far as these are reachable where it counts.
func (d *election) recordMembers(id view.VIPID, x memberIndex) {
	peers := d.view.Members.Peers
	d.claimants = x.claimants[id]
	for _, name := range d.claimants {
		m := peers[name]
		if !d.receives(m) {
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
	for _, name := range x.observers {
		if d.reachable(name) {
			d.observers[name] = true
		}
	}
	for _, name := range x.unsynced {
		if (slices.Contains(d.vip.Nodes, name) || name == d.vip.ReportedOwner) && d.reachable(name) {
			d.unsure = true
		}
	}
	for _, m := range peers {
		if d.receives(m) {
			d.alone = false
			break
		}
	}
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
