package ownership

import (
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// ownBlocker returns the blocker of this node, independent of the other nodes.
func (d *election) ownBlocker() view.Reason {
	switch {
	case len(d.addrs) == 0:
		return view.NoService
	case len(d.vip.Nodes) == 0:
		return view.NoEligibleNode
	case d.view.Members.Observer:
		return view.Observer
	case !d.advertisedAt(d.view.Nodes[d.self].Labels):
		return view.NoAdvertisement
	}
	for _, a := range d.addrs {
		if len(d.on[a.IP]) == 0 {
			return view.NoInterface
		}
		if len(d.usable(a.IP)) == 0 {
			return view.Isolated
		}
	}
	for _, a := range d.addrs {
		if why, unable := d.view.Unable[a.IP]; unable {
			return why
		}
	}
	return noReason
}

// choose lists the candidates. With terminating set they include nodes whose endpoints terminate, and this node if it
// does not reach every network. It reports whether these are needed.
func (d *election) choose(terminating bool) bool {
	d.candidates, d.releaseReason = nil, noReason
	lacking := false
	for _, n := range d.vip.Nodes {
		why := d.against(n, terminating)
		if n == d.self {
			if why == noReason && d.partial && !terminating {
				why = view.PartlyIsolated
			}
			d.releaseReason = why
		}
		if why == noReason && (n != d.self || d.blocker == noReason) {
			d.candidates = append(d.candidates, n)
		}
		lacking = lacking || why == view.NoLocalEndpoint || why == view.PartlyIsolated
	}
	switch {
	case d.view.Leaving:
		d.releaseReason = view.Stopping
	case !slices.Contains(d.vip.Nodes, d.self):
		d.releaseReason = view.NotListed
	}
	return lacking && len(d.candidates) == 0
}

// against returns why a listed node is no candidate, noReason if it is one.
func (d *election) against(node string, terminating bool) view.Reason {
	switch why := d.unavailable(node); {
	case why != noReason:
		return why
	case !d.hasEndpoints(node, terminating):
		return view.NoLocalEndpoint
	case node != d.self && d.declined[node]:
		return view.NodeDeclined
	}
	return noReason
}

// hasSome reports whether this node has an endpoint of a needed port: it serves that until another node took over.
func (d *election) hasSome() bool {
	return slices.ContainsFunc(d.needed, func(p view.PortNodes) bool { return view.HaveEach([]view.PortNodes{p}, d.self, true) })
}

// unavailable returns why a listed node may not own the VirtualIP whatever its endpoints, noReason if it may.
func (d *election) unavailable(node string) view.Reason {
	if node != d.self {
		m := d.view.Members.Peers[node]
		switch {
		case !d.reachable(node) || m.Away:
			return view.NodeNotAlive
		case m.Leaving:
			return view.Stopping
		}
	} else if d.view.Leaving {
		return view.Stopping
	}
	return d.able(node)
}
