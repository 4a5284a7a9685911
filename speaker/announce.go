package speaker

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/plan"
)

// withdraw stops the announcements that are no longer wanted. It precedes every other change.
func (s *Speaker) withdraw(todo *work) {
	s.withdrawRoutes(todo)
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

// announce announces the planned addresses of the VirtualIPs that may allows.
func (s *Speaker) announce(todo *work, may func(vip string) bool) {
	changed := todo.announce
	todo.announce = false
	for addr := range todo.addrs {
		ann, wanted := s.desired.Announce[addr]
		if have, told := s.target[addr]; !wanted || told && ann.Equal(have) || !may(ann.VIP) {
			continue
		}
		s.target[addr], changed = ann, true
	}
	if changed {
		s.tell(todo)
	}
}

// tell passes all announcements to the announcer and logs the changes that took effect.
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
			s.log("announce", "address", addr, "vip", want[addr].VIP, "interfaces", held[addr], "reason", s.desired.VIPs[want[addr].VIP].Moved)
		}
	}
	s.noteStatuses(todo, want, held)
	s.announced, s.held = want, held
}

// noteStatuses adds to the work the VirtualIPs whose announcements changed.
func (s *Speaker) noteStatuses(todo *work, want map[netip.Addr]plan.Announcement, held map[netip.Addr][]string) {
	for _, set := range []map[netip.Addr]plan.Announcement{s.announced, want} {
		for addr, ann := range set {
			if has(s.announced, addr) != has(want, addr) || !slices.Equal(s.held[addr], held[addr]) {
				todo.vips[ann.VIP] = struct{}{}
			}
		}
	}
}

// whyNot returns why an address is no longer announced.
func (s *Speaker) whyNot(addr netip.Addr, want map[netip.Addr]plan.Announcement) plan.Reason {
	if ann, ok := want[addr]; ok && ann.Probe {
		return plan.Probing
	} else if ok {
		return plan.NoInterface
	}
	dec, ok := s.desired.VIPs[s.announced[addr].VIP]
	switch {
	case !ok:
		return plan.NoService
	case dec.Owner == s.cfg.NodeName && s.leaving.Load(): // no other node took over
		return plan.Stopping
	case dec.Owner == s.cfg.NodeName: // another address of it is still announced
		return plan.NoService
	}
	return dec.Moved
}

func sortedKeys(m map[netip.Addr][]string) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
