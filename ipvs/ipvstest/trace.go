package ipvstest

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// Node is the complete state of a node that affects a packet to a virtual address.
type Node struct {
	Local  map[netip.Addr]struct{}
	Filter ipvs.Filter
	Table  ipvs.Table
	// ClusterInternal replaces the entry of Table for Pods and the node itself.
	ClusterInternal ipvs.Table
	// Own are the node's own addresses.
	Own map[netip.Addr]struct{}
}

// Client is the origin of a packet. The zero value is a client outside the cluster whose address is in no rule.
type Client struct {
	// Addr is the source; the filter determines whether it is a Pod's.
	Addr netip.Addr
	// Via is the interface on which the packet arrives, if relevant.
	Via string
	// Self is a process on the node. The kernel selects the destination address as its source.
	Self bool
}

// Trace returns the outcome for an external client's first packet to a virtual server, as TraceFrom does.
func (n Node) Trace(to ipvs.Key) string { return n.TraceFrom(Client{}, to) }

// TraceFrom returns the outcome for a client's first packet to a virtual server, so that a test states the outcome and
// not the tables that lead to it:
//
//	routed on: the address is not local
//	dropped: unallocated ClusterIP
//	dropped: not in the source ranges
//	dropped: no endpoint here
//	refused: no such port
//	reaches the node's own socket
//	refused: no real server
//	leaves to 192.0.2.11:8080 or 192.0.2.12:8080
//	leaves to 192.0.2.11:8080 (masqueraded) or 192.0.2.12:8080
//	leaves to 192.0.2.11:8080, masqueraded
func (n Node) TraceFrom(c Client, to ipvs.Key) string {
	if c.Self {
		c.Addr = to.Addr
	}
	address := ipvs.Key{Addr: to.Addr}
	_, local := n.Local[to.Addr]
	_, own := n.Own[to.Addr]
	internal, different := n.ClusterInternal[to]
	switch {
	case n.covers(ipvs.ServiceNetworks, ipvs.Key{}, to.Addr) && !n.has(ipvs.Addresses, address):
		return "dropped: unallocated ClusterIP"
	case !local && !own:
		return "routed on: the address is not local"
	case n.has(ipvs.Addresses, address) && !n.has(ipvs.Served, to):
		return "refused: no such port"
	case n.has(ipvs.Restricted, to) && !n.covers(ipvs.Allowed, to, c.Addr):
		return "dropped: not in the source ranges"
	case different && (c.Self || n.isPod(c)):
		return n.leaves(c, to, internal)
	case n.has(ipvs.Dropped, to):
		return "dropped: no endpoint here"
	}
	vs, exists := n.Table[to]
	if !exists {
		return "reaches the node's own socket"
	}
	return n.leaves(c, to, vs)
}

// leaves lists the real servers that may get the packet, and those for which it is masqueraded.
func (n Node) leaves(c Client, to ipvs.Key, vs ipvs.VirtualServer) string {
	all := c.Self || n.has(ipvs.Masqueraded, to) || n.has(ipvs.MasqueradedUnlessPod, to) && !n.isPod(c)
	var reals []string
	for _, at := range slices.SortedFunc(maps.Keys(vs.RealServers), netip.AddrPort.Compare) {
		if vs.RealServers[at].Weight == 0 {
			continue
		}
		text := at.String()
		if !all && at.Addr() == c.Addr && n.has(ipvs.Hairpin, ipvs.Key{Addr: at.Addr()}) {
			text += " (masqueraded)"
		}
		reals = append(reals, text)
	}
	if len(reals) == 0 {
		return "refused: no real server"
	}
	text := "leaves to " + strings.Join(reals, " or ")
	if all {
		text += ", masqueraded"
	}
	return text
}

func (n Node) isPod(c Client) bool {
	if n.covers(ipvs.Pods, ipvs.Key{}, c.Addr) {
		return true
	}
	for e := range n.Filter {
		name, several := strings.CutSuffix(e.Interface(), "*")
		arrives := c.Via == name || several && strings.HasPrefix(c.Via, name)
		if e.Set == ipvs.PodInterfaces && e.Is4() == c.Addr.Is4() && arrives {
			return true
		}
	}
	return false
}

func (n Node) has(set ipvs.Set, key ipvs.Key) bool {
	_, ok := n.Filter[ipvs.Element{Set: set, Key: key}]
	return ok
}

// covers reports whether a prefix of the set, for the key, contains the address.
func (n Node) covers(set ipvs.Set, key ipvs.Key, addr netip.Addr) bool {
	for e := range n.Filter {
		if e.Set == set && e.Key == key && e.Prefix().Contains(addr) {
			return true
		}
	}
	return false
}
