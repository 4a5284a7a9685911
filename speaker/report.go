package speaker

import (
	"maps"
	"slices"

	"github.com/ironlb/ironlb/speaker/plan"
)

// report counts what became of the VirtualIPs and Services that the work names, and publishes the status of those
// VirtualIPs that this node speaks for, if one changed.
func (s *Speaker) report(todo *work) {
	for service := range todo.services {
		reason, exists := s.desired.Services[service]
		s.services.set(service, reason, exists)
	}
	changed := false
	for name := range todo.vips {
		dec, exists := s.desired.VIPs[name]
		status := s.status(dec)
		s.vips.set(name, status.Reason, exists)
		before, was := s.statuses[name]
		is := exists && dec.Reporter
		if is == was && (!is || equal(before, status)) {
			continue
		}
		changed = true
		if is {
			s.statuses[name] = status
		} else {
			delete(s.statuses, name)
		}
	}
	s.cfg.Metrics.announced.Set(float64(len(s.held)))
	if changed {
		s.cfg.Reporter.Report(maps.Clone(s.statuses))
	}
}

func equal(a, b plan.Status) bool {
	return slices.Equal(a.Interfaces, b.Interfaces) && a.Node == b.Node && a.Announced == b.Announced && a.Reason == b.Reason && a.Message == b.Message
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
	plan.NodeNotAlive:      "none of its nodes has a speaker that is heard",
	plan.NoAdvertisement:   "no L2Advertisement covers its pool on any of its nodes that is alive",
	plan.NoLocalEndpoint:   "externalTrafficPolicy is Local and none of its nodes that is alive has an endpoint",
	plan.NoService:         "no Service holds its address",
	plan.DataPlaneNotReady: "its virtual servers could not be programmed; the speaker's /readyz says why",
	plan.NoInterface:       "no interface is up that has it in its subnet or that its L2Advertisement names",
}
