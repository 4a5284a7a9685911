package ipvstest

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// Node is all that a packet to a virtual address meets on a node.
type Node struct {
	Local  map[netip.Addr]struct{}
	Filter ipvs.Filter
	Table  ipvs.Table
}

// Trace says what becomes of a client's first packet to a virtual server, so that a test states the outcome and not the
// tables that lead to it:
//
//	routed on: the address is not local
//	refused: no such port
//	reaches the node's own socket
//	refused: no real server
//	leaves to 192.0.2.11:8080 or 192.0.2.12:8080
//	leaves to 192.0.2.11:8080, masqueraded
func (n Node) Trace(to ipvs.Key) string {
	if _, local := n.Local[to.Addr]; !local {
		return "routed on: the address is not local"
	}
	if n.has(ipvs.Addresses, ipvs.Key{Addr: to.Addr}) && !n.has(ipvs.Served, to) {
		return "refused: no such port"
	}
	vs, exists := n.Table[to]
	if !exists {
		return "reaches the node's own socket"
	}
	var reals []string
	for _, addr := range slices.SortedFunc(maps.Keys(vs.RealServers), netip.AddrPort.Compare) {
		if vs.RealServers[addr].Weight > 0 {
			reals = append(reals, addr.String())
		}
	}
	if len(reals) == 0 {
		return "refused: no real server"
	}
	text := "leaves to " + strings.Join(reals, " or ")
	if n.has(ipvs.Masqueraded, to) {
		text += ", masqueraded"
	}
	return text
}

func (n Node) has(set ipvs.Set, key ipvs.Key) bool {
	_, ok := n.Filter[ipvs.Element{Set: set, Key: key}]
	return ok
}
