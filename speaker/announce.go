package speaker

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/plan"
)

// stillWanted returns what is announced and may stay so.
func (s *Speaker) stillWanted() map[netip.Addr]plan.Announcement {
	keep := map[netip.Addr]plan.Announcement{}
	for addr := range s.announced {
		if ann, ok := s.desired.Announce[addr]; ok {
			keep[addr] = ann
		}
	}
	return keep
}

// withdraw stops the announcements that are no longer wanted. It comes before every other change.
func (s *Speaker) withdraw() error {
	keep := s.stillWanted()
	if len(keep) == len(s.announced) {
		return nil
	}
	return s.announce(keep)
}

// announce tells the announcer the whole set and logs what really changed.
func (s *Speaker) announce(want map[netip.Addr]plan.Announcement) error {
	held, err := s.cfg.Announcer.Announce(want)
	if held == nil && err != nil {
		return err
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
	s.announced, s.held = want, held
	return err
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

// report publishes the VirtualIPs that this node speaks for, and counts all of them and all Services by reason.
func (s *Speaker) report() {
	statuses := map[string]plan.Status{}
	vips, services := map[plan.Reason]int{}, map[plan.Reason]int{}
	for _, reason := range s.desired.Services {
		services[reason]++
	}
	for name, dec := range s.desired.VIPs {
		status := s.status(dec)
		vips[status.Reason]++
		if dec.Reporter {
			statuses[name] = status
		}
	}
	s.cfg.Metrics.reasons(len(s.held), vips, services)
	s.cfg.Reporter.Report(statuses)
}

// status says what became of a decision on this node.
func (s *Speaker) status(dec plan.Decision) plan.Status {
	if dec.Owner == "" || dec.Owner != s.cfg.NodeName {
		return plan.Status{Reason: dec.Reason, Message: messages[dec.Reason]}
	}
	interfaces := map[string]struct{}{}
	for _, addr := range dec.Addresses {
		on, answered := s.held[addr]
		if _, told := s.announced[addr]; !told {
			return plan.Status{Reason: plan.DataPlaneNotReady, Message: "node " + dec.Owner + ": " + messages[plan.DataPlaneNotReady]}
		}
		if !answered {
			return plan.Status{Reason: plan.NoInterface, Message: "node " + dec.Owner + ": " + messages[plan.NoInterface]}
		}
		for _, name := range on {
			interfaces[name] = struct{}{}
		}
	}
	return plan.Status{
		Node:       dec.Owner,
		Interfaces: slices.Sorted(maps.Keys(interfaces)),
		Announced:  true,
		Reason:     plan.Owner,
		Message:    "answered for by node " + dec.Owner,
	}
}

// messages say what a reason means and how to mend it.
var messages = map[plan.Reason]string{
	plan.NoEligibleNode:    "no node may answer for it",
	plan.NodeNotReady:      "none of its nodes is Ready",
	plan.NoAdvertisement:   "no L2Advertisement covers its pool on any of its nodes that is Ready",
	plan.NoLocalEndpoint:   "externalTrafficPolicy is Local and none of its nodes that is Ready has an endpoint",
	plan.NoService:         "no Service holds its address",
	plan.DataPlaneNotReady: "its virtual servers could not be programmed; the speaker's /readyz says why",
	plan.NoInterface:       "no interface is up that has it in its subnet or that its L2Advertisement names",
}

func sortedKeys(m map[netip.Addr][]string) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
