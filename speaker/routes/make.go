package routes

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

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
