package forwarding

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// nodeTable assigns indexes to the Nodes, for ipvs.Direct. A Node keeps its index. That of a deleted Node is assigned
// again from the next update on: until then every Service that uses the Node is planned without it.
type nodeTable struct {
	index map[string]uint16
	// names and addrs are by index: an empty name is an unused index, an invalid address that of a Node without one.
	names []string
	addrs []netip.Addr
}

// usable reports whether packets can be sent to a Node, as far as its addresses matter.
func (t *nodeTable) usable(name string) bool {
	i, known := t.index[name]
	return known && t.addrs[i].IsValid()
}

// update assigns indexes to the Nodes of the View.
func (t *nodeTable) update(v *view.View, self string) {
	for _, name := range slices.Sorted(maps.Keys(v.Nodes)) {
		if _, known := t.index[name]; known {
			continue
		}
		i := slices.Index(t.names, "")
		if i < 0 {
			i, t.names = len(t.names), append(t.names, "")
		}
		t.names[i], t.index[name] = name, uint16(i)
	}
	for name, i := range t.index {
		if _, exists := v.Nodes[name]; !exists {
			t.names[i] = ""
			delete(t.index, name)
		}
	}
	t.addrs = make([]netip.Addr, len(t.names)) // the previous slice may be in use
	for name, i := range t.index {
		t.addrs[i] = tunnelAddress(v.Nodes[name], v.Nodes[self])
	}
}

// tunnelAddress returns the address of a Node for tunnels to or from this one, invalid for none: the IPv4 address, or
// the IPv6 address if neither has one. If only one of them has an IPv4 address there is none, so that both agree.
func tunnelAddress(node, self view.Node) netip.Addr {
	four, has4 := node.Address(true)
	_, self4 := self.Address(true)
	if has4 != self4 {
		return netip.Addr{}
	}
	if has4 {
		return four
	}
	six, _ := node.Address(false)
	return six
}

// planNodes updates the nodes of tunnels.
func (p *Planner) planNodes(v *view.View) {
	p.nodes.update(v, p.node)
	direct := &p.forwarding.Direct
	var self netip.Addr
	if i, exists := p.nodes.index[p.node]; exists {
		self = p.nodes.addrs[i]
	}
	if self == direct.Self && slices.Equal(p.nodes.addrs, direct.Nodes) {
		return
	}
	direct.Self, direct.Nodes, p.changed.DirectNodes = self, p.nodes.addrs, true
}

// touchedDirect adds the Services to be forwarded directly whose fallback or slots may differ, besides those that
// changed themselves: the Nodes of their endpoints changed, or whether these or this node can use tunnels.
func (p *Planner) touchedDirect(v *view.View, touched view.Touched, services map[pools.ServiceKey]struct{}) {
	if touched.NotDirect || p.observer != v.Members.Observer {
		maps.Copy(services, p.directs)
	}
	p.observer = v.Members.Observer
	if touched.All {
		clear(p.tunnels)
		for node, peer := range v.Members.Peers {
			incremental.Set(p.tunnels, node, peer.DirectIPv4Only, peer.Direct)
		}
	}
	use := func(node string) {
		for key := range p.usersOf[node] {
			if _, direct := p.directs[key]; direct {
				services[key] = struct{}{}
			}
		}
	}
	for node := range touched.Nodes {
		use(node)
	}
	for node := range touched.Members {
		only, before := p.tunnels[node]
		now := v.Members.Peers[node]
		incremental.Set(p.tunnels, node, now.DirectIPv4Only, now.Direct)
		firstReceived := !now.Direct // possibly: p.tunnels does not distinguish it from an unknown node
		if now.Direct != before || now.DirectIPv4Only != only || firstReceived || p.observer {
			use(node)
		}
	}
}
