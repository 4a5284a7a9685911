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
			a.reevaluateHolder(x)
		default:
			a.withhold(x)
		}
	}
	for _, x := range slices.SortedFunc(maps.Keys(before), netip.Addr.Compare) {
		switch {
		case hosts[x] != "":
		case len(a.ofNodes[x]) > 0:
			a.reevaluateHolder(x)
		default:
			a.endWithholding(x)
		}
	}
}

// usedElsewhere reports whether a node or a foreign host has the address.
func (a *Allocator) usedElsewhere(x netip.Addr) bool {
	return len(a.ofNodes[x]) > 0 || a.hosts[x] != ""
}

// hostAgainst returns the foreign host that blocks the address for the claim, empty for none. A Service keeps an
// address that it requests.
func (a *Allocator) hostAgainst(c *Claim, x netip.Addr) string {
	if c.requested(FamilyOf(x)) == x {
		return ""
	}
	return a.hosts[x]
}
