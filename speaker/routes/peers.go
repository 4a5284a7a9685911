package routes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// planPeers plans the sessions of this node. It reports whether sessions were added or removed, or changed their
// families or between internal and external.
func (p *Planner) planPeers(v *view.View) (others bool) {
	d, node := &p.routing, p.node
	peers, problems := map[string]Peer{}, map[string]PeerProblem{}
	taken := map[netip.Addr]string{}
	for _, name := range oldestFirst(v.BGPPeers) {
		o := v.BGPPeers[name]
		first := taken[o.Address]
		switch {
		case !o.On(node.Labels):
		case o.Wrong != "":
			problems[name] = PeerProblem{o.Wrong, o.Message}
		case first != "":
			problems[name] = PeerProblem{Duplicate, fmt.Sprintf("BGPPeer %s has the same peerAddress, %v, on this node: delete one of them, "+
				"or let their nodeSelectors select different nodes", first, o.Address)}
		default:
			taken[o.Address] = name
			peers[name] = sessionWith(o, node)
			if problem, is := lacks(o, peers[name]); is {
				problems[name] = problem
			}
		}
	}
	routerID := routerID(node, p.name)
	p.changed.RouterID = p.changed.RouterID || d.BGP.RouterID != routerID
	d.BGP.RouterID = routerID
	for name, peer := range peers {
		if before, was := d.BGP.Peers[name]; !was || before != peer {
			p.changed.Peers[name] = struct{}{}
			others = others || !was || before.IPv4 != peer.IPv4 || before.IPv6 != peer.IPv6 || before.internal() != peer.internal()
		}
	}
	for name := range d.BGP.Peers {
		if _, still := peers[name]; !still {
			p.changed.Peers[name] = struct{}{}
			others = true
		}
	}
	for _, set := range []map[string]PeerProblem{d.PeerProblems, problems} {
		for name := range set {
			if d.PeerProblems[name] != problems[name] {
				p.changed.Peers[name] = struct{}{}
			}
		}
	}
	d.BGP.Peers, d.PeerProblems = peers, problems
	p.peers = slices.Sorted(maps.Keys(peers))
	return others
}

// oldestFirst returns the names of peers in order of precedence.
func oldestFirst(peers map[string]view.BGPPeer) []string {
	return slices.SortedFunc(maps.Keys(peers), func(a, b string) int {
		return cmp.Or(cmp.Compare(peers[a].Created, peers[b].Created), cmp.Compare(a, b))
	})
}
