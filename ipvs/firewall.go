package ipvs

import (
	"maps"
	"net/netip"
)

// Firewall is what the packet filter must hold for the virtual servers of a node. The zero value is an empty one.
type Firewall struct {
	// Addrs are the virtual addresses. A packet to one of them that asks for a port not in Served is rejected, so that
	// the node's own sockets are not reachable through it (ipvs.md 2.3.3).
	Addrs map[netip.Addr]struct{}
	// Served are the virtual servers that exist.
	Served map[Key]struct{}
	// Masquerade are the virtual servers whose clients' source address is rewritten to the node's
	// (externalTrafficPolicy: Cluster, ipvs.md 2.2.3).
	Masquerade map[Key]struct{}
}

// Clone returns a copy that shares nothing; its maps are never nil.
func (f Firewall) Clone() Firewall {
	return f.Union(Firewall{})
}

// Union returns what either holds. Applied before virtual servers are added it keeps the old ones served until they
// are gone.
func (f Firewall) Union(g Firewall) Firewall {
	return Firewall{
		Addrs:      union(f.Addrs, g.Addrs),
		Served:     union(f.Served, g.Served),
		Masquerade: union(f.Masquerade, g.Masquerade),
	}
}

// Equal tells whether both hold the same.
func (f Firewall) Equal(g Firewall) bool {
	return maps.Equal(f.Addrs, g.Addrs) && maps.Equal(f.Served, g.Served) && maps.Equal(f.Masquerade, g.Masquerade)
}

func union[K comparable](a, b map[K]struct{}) map[K]struct{} {
	c := make(map[K]struct{}, len(a)+len(b))
	maps.Copy(c, a)
	maps.Copy(c, b)
	return c
}
