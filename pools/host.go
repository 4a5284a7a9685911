package pools

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// SetHosts replaces the addresses of foreign hosts, with the name of each host. A Service gets such an address only if
// it requests it. A Service that has one and did not request it gets another one at its next Assign, if there is any.
func (a *Allocator) SetHosts(hosts map[netip.Addr]string) {
	before := a.hosts
	a.hosts = maps.Clone(hosts)
	for _, x := range slices.SortedFunc(maps.Keys(hosts), netip.Addr.Compare) {
		switch {
		case before[x] != "":
		case len(a.others[x]) > 0:
			a.reevaluateHolder(x)
		default:
			a.withhold(x)
		}
	}
	for _, x := range slices.SortedFunc(maps.Keys(before), netip.Addr.Compare) {
		switch {
		case hosts[x] != "":
		case len(a.others[x]) > 0:
			a.reevaluateHolder(x)
		default:
			a.endWithholding(x, Refusal{}, time.Time{})
		}
	}
}

// usedElsewhere reports whether something else, or a foreign host, has the address.
func (a *Allocator) usedElsewhere(x netip.Addr) bool {
	return len(a.others[x]) > 0 || a.hosts[x] != ""
}

// hostAgainst returns the foreign host that blocks the address for the claim, empty for none. A Service keeps an
// address that it requests.
func (a *Allocator) hostAgainst(c *Claim, x netip.Addr) string {
	if c.requested(FamilyOf(x)) == x {
		return ""
	}
	return a.hosts[x]
}
