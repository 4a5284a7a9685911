package status

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// unserved are the addresses that this node could not program, with the reason. published is the last report, nil if
// that is outdated. The errors themselves are logged elsewhere.
type unserved struct {
	of        map[netip.Addr]view.Reason
	published map[view.Reason][]netip.Addr
}

// record records the outcome for an address.
func (u *unserved) record(addr netip.Addr, routed routes.Routed, covered bool) {
	before, was := u.of[addr]
	failed := covered && routed.Failed()
	if was == failed && (!was || before == routed.Reason) {
		return
	}
	u.published = nil
	if failed {
		u.of[addr] = routed.Reason
	} else {
		delete(u.of, addr)
	}
}

// list returns the addresses by reason, sorted.
func (u *unserved) list() map[view.Reason][]netip.Addr {
	if u.published == nil {
		u.published = map[view.Reason][]netip.Addr{}
		for addr, reason := range u.of {
			u.published[reason] = append(u.published[reason], addr)
		}
		for reason := range u.published {
			slices.SortFunc(u.published[reason], netip.Addr.Compare)
		}
	}
	return u.published
}
