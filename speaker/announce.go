package speaker

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/plan"
)

// withdraw stops the announcements that are no longer wanted. It comes before every other change.
func (s *Speaker) withdraw(todo *work) {
	changed := false
	for addr := range todo.addrs {
		if has(s.target, addr) && !has(s.desired.Announce, addr) {
			delete(s.target, addr)
			changed = true
		}
	}
	if changed {
		s.tell(todo)
	}
}

// announce answers for what the node can forward now, and no longer for what it cannot.
func (s *Speaker) announce(todo *work) {
	changed, lacking := todo.announce, s.lacking()
	for addr := range todo.addresses() {
		ann, wanted := s.desired.Announce[addr]
		wanted = wanted && s.forwards(addr, lacking)
		have, told := s.target[addr]
		if wanted == told && (!wanted || ann.Equal(have)) {
			continue
		}
		changed = true
		if wanted {
			s.target[addr] = ann
		} else {
			delete(s.target, addr)
		}
	}
	if changed {
		s.tell(todo)
	}
}

// forwards tells whether what reaches the node for an address is taken care of, by us or, where we do not serve it, by
// others.
func (s *Speaker) forwards(addr netip.Addr, lacking map[ipvs.Key]bool) bool {
	if !has(s.desired.Local, addr) {
		return s.known.sysctls.of(addr) == nil || has(s.announced, addr)
	}
	return has(s.known.addrs, addr) && s.programmed(addr, lacking)
}

// tell tells the announcer the whole set and logs what really changed.
func (s *Speaker) tell(todo *work) {
	want := maps.Clone(s.target)
	held, err := s.cfg.Announcer.Announce(want)
	if err != nil {
		s.fail(err)
		s.failed.announce = true
	}
	if held == nil && err != nil {
		return
	}
	for _, addr := range sortedKeys(s.held) {
		if _, still := held[addr]; !still {
			s.log("withdraw", "address", addr, "vip", s.announced[addr].VIP, "reason", s.whyNot(addr, want))
		}
	}
	for _, addr := range sortedKeys(held) {
		if before := s.held[addr]; !slices.Equal(before, held[addr]) {
			s.log("announce", "address", addr, "vip", want[addr].VIP, "interfaces", held[addr], "reason", plan.Owner)
		}
	}
	s.noteStatuses(todo, want, held)
	s.announced, s.held = want, held
}

// noteStatuses names the VirtualIPs of the addresses of which something else is true now.
func (s *Speaker) noteStatuses(todo *work, want map[netip.Addr]plan.Announcement, held map[netip.Addr][]string) {
	for _, set := range []map[netip.Addr]plan.Announcement{s.announced, want} {
		for addr, ann := range set {
			if has(s.announced, addr) != has(want, addr) || !slices.Equal(s.held[addr], held[addr]) {
				todo.vips[ann.VIP] = struct{}{}
			}
		}
	}
}

// whyNot returns why an address is not announced any more.
func (s *Speaker) whyNot(addr netip.Addr, want map[netip.Addr]plan.Announcement) plan.Reason {
	if _, ok := want[addr]; ok {
		return plan.NoInterface
	}
	if _, ok := s.desired.Announce[addr]; ok {
		return plan.DataPlaneNotReady
	}
	if dec, ok := s.desired.VIPs[s.announced[addr].VIP]; ok && dec.Reason != plan.Owner {
		return dec.Reason
	}
	return plan.NoService
}

func sortedKeys(m map[netip.Addr][]string) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
