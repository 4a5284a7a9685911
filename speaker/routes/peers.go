package routes

import (
	"cmp"
	"crypto/sha256"
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

// sessionWith returns the session of a node with the peer. In the family other than that of the session, the next hop
// is the node's own address. That is also the next hop for a link-local peer, which could not propagate the local end
// of the session.
func sessionWith(p view.BGPPeer, node view.Node) Peer {
	out := Peer{
		Address: p.Address, Port: p.Port, MyASN: p.MyASN, LocalASN: p.LocalASN, PeerASN: p.PeerASN, Dynamic: p.Dynamic, Source: p.Source, RouterID: p.RouterID,
		HoldTime: p.HoldTime, KeepaliveTime: p.KeepaliveTime, ConnectTime: p.ConnectTime, Password: p.Password,
		MultiHop: p.MultiHop, TTLSecurity: p.TTLSecurity, GracefulRestart: p.GracefulRestart, RestartTime: p.RestartTime, BFD: p.BFD,
		IPv4: p.Address.Is4(), IPv6: p.Address.Is6(), MaxReceivedPrefixes: p.MaxReceivedPrefixes,
	}
	if p.Address.Zone() != "" {
		out.NextHop6, _ = node.Address(false)
	}
	if !p.DualStack {
		return out
	}
	other, has := node.Address(!p.Address.Is4())
	switch {
	case !has:
	case other.Is4():
		out.IPv4, out.NextHop4 = true, other
	default:
		out.IPv6, out.NextHop6 = true, other
	}
	return out
}

// lacks returns the part of the peer's configuration that a session lacks.
func lacks(p view.BGPPeer, session Peer) (PeerProblem, bool) {
	family := "IPv4"
	if p.Address.Is4() {
		family = "IPv6"
	}
	if !p.DualStack || session.IPv4 && session.IPv6 {
		return PeerProblem{}, false
	}
	return PeerProblem{NotConfigured, fmt.Sprintf("no %s prefix is announced: the Node has no %s InternalIP to be the next hop; give it one, "+
		"or leave out dualStackAddressFamily", family, family)}, true
}

// knownAs returns the node with its previous address in each family in which it has none. A recreated Node object gets
// its addresses one by one; each would change the router ID, or add a family to a session.
func knownAs(n, before view.Node) view.Node {
	for _, v4 := range []bool{true, false} {
		if _, has := n.Address(v4); has {
			continue
		}
		if addr, had := before.Address(v4); had {
			n.Addresses = append(slices.Clip(n.Addresses), addr)
		}
	}
	return n
}

// routerID returns the BGP identifier of a node without a configured one: its IPv4 InternalIP, or a hash that is very
// likely unique (RFC 6286, 2.1: any number but 0 that is unique within the AS).
func routerID(n view.Node, name string) netip.Addr {
	if addr, has := n.Address(true); has {
		return addr
	}
	sum := sha256.Sum256([]byte(name))
	sum[0] &= 0x7f
	sum[3] |= 1 // never 0
	return netip.AddrFrom4([4]byte(sum[:4]))
}
