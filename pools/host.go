package pools

import (
	"maps"
	"net/netip"
	"slices"
)

// setHosts withholds the addresses that are new in the set from their pools, and gives back those removed from it.
func (a *Allocator) setHosts(hosts map[netip.Addr]string) {
	before := a.hosts
	a.hosts = maps.Clone(hosts)
	for _, x := range slices.SortedFunc(maps.Keys(hosts), netip.Addr.Compare) {
		switch {
		case before[x] != "":
		case len(a.ofNodes[x]) > 0:
			a.lookAtHolder(x)
		default:
			a.withhold(x)
		}
	}
	for _, x := range slices.SortedFunc(maps.Keys(before), netip.Addr.Compare) {
		switch {
		case hosts[x] != "":
		case len(a.ofNodes[x]) > 0:
			a.lookAtHolder(x)
		default:
			a.giveUp(x)
		}
	}
}

// othersHave reports whether a node or a foreign host has the address.
func (a *Allocator) othersHave(x netip.Addr) bool { return len(a.ofNodes[x]) > 0 || a.hosts[x] != "" }

// hostAgainst returns the foreign host that blocks the address for the claim, empty for none. A Service keeps an
// address that it asks for.
func (a *Allocator) hostAgainst(c *Claim, x netip.Addr) string {
	if c.asked(FamilyOf(x)) == x {
		return ""
	}
	return a.hosts[x]
}
