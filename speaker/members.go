package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/plan"
)

// hear adds to the View the state of the other members and of this node.
func (s *Speaker) hear(v *plan.View, touched *plan.Touched) {
	before := v.Members.Observer
	v.Members, touched.Members, touched.Claims = s.cfg.Detector.Observe()
	v.Unable, v.Leaving = s.unable, s.leaving.Load()
	s.mustSay = s.mustSay || v.Members.Observer != before || v.Leaving != s.said.Leaving
	if v.Members.Observer && !before {
		clear(s.statuses) // other nodes own the addresses by now and report them
		s.cfg.Reporter.Report(map[string]plan.Status{})
	}
	if s.cfg.MACs != nil {
		if macs := s.cfg.MACs(); !maps.Equal(macs, s.macs) { // they may change while the liveness of a node does not
			s.macs = macs
			s.cfg.Announcer.SetPeers(macs)
		}
	}
	if len(touched.Nodes) > 0 || s.desired == nil {
		peers := make(map[string][]netip.Addr, len(v.Nodes))
		for name, node := range v.Nodes {
			peers[name] = node.Addresses
		}
		s.cfg.Detector.SetPeers(peers)
	}
	s.observeReach(v, touched)
}

// listen sets the interfaces on which to receive other members, according to the plan.
func (s *Speaker) listen(touched plan.Touched, changed *plan.Changed) {
	if changed.Segments || len(touched.Links) > 0 {
		s.cfg.Detector.SetSegments(slices.Sorted(maps.Keys(s.desired.Segments)))
	}
}

// say publishes this node's claims for the VirtualIPs of the work, as far as may allows it. A claim is published before
// the first answer, and its end after the last one.
func (s *Speaker) say(todo *work, may func(vip string) bool) {
	changed := s.mustSay
	for name := range todo.vips {
		claim, says := s.desired.Claims[name]
		before, said := s.said.Claims[name]
		if says == said && claim == before || says && claim.State == plan.Held && !answers(before) && !may(name) {
			continue
		}
		changed = true
		if says {
			s.said.Claims[name] = claim
		} else {
			delete(s.said.Claims, name)
		}
	}
	if !changed {
		return
	}
	s.mustSay, s.said.Leaving = false, s.view.Leaving // as planned
	s.cfg.Detector.Say(plan.Word{Claims: maps.Clone(s.said.Claims), Leaving: s.said.Leaving})
}

func answers(c plan.Claim) bool { return c.State == plan.Held || c.State == plan.Leaving }

// ready returns a function that reports whether this node can answer for a VirtualIP before the work is done: it
// already forwards the addresses, and the work does not affect them. So a failover does not wait for unrelated work.
func (s *Speaker) ready(todo *work) func(vip string) bool {
	ready := s.readyAddress(todo)
	return func(vip string) bool {
		return !slices.ContainsFunc(s.desired.VIPs[vip].Addresses, func(a netip.Addr) bool { return !ready(a) })
	}
}

// readyAddress is ready for a single address.
func (s *Speaker) readyAddress(todo *work) func(addr netip.Addr) bool {
	busy := map[netip.Addr]struct{}{}
	for key := range todo.keys {
		busy[key.Addr] = struct{}{}
	}
	for e := range todo.elements {
		if ofVirtual(e) {
			busy[e.Key.Addr] = struct{}{}
		}
	}
	return func(a netip.Addr) bool {
		return has(s.fit, a) && !has(busy, a) && (!has(s.desired.Local, a) || s.known != nil && has(s.known.addrs, a))
	}
}

// judge records which addresses of the work this node cannot answer for, and plans again if that changed.
func (s *Speaker) judge(todo *work) {
	addrs := todo.addresses()
	before := s.conflicts
	s.conflicts = s.cfg.Announcer.Conflicts()
	for addr, c := range s.conflicts {
		if before[addr] != c {
			addrs[addr] = struct{}{}
		}
	}
	for addr := range before {
		if !has(s.conflicts, addr) {
			addrs[addr] = struct{}{}
		}
	}
	s.noteConflicts(todo, before)
	var lacking map[ipvs.Key]bool
	if s.known != nil {
		lacking = s.lacking()
	}
	touched := map[netip.Addr]struct{}{}
	for addr := range addrs {
		why := s.unfit(addr, lacking)
		if s.unable[addr] == why {
			continue
		}
		touched[addr] = struct{}{}
		if why == "" {
			delete(s.unable, addr)
		} else {
			s.unable[addr] = why
		}
	}
	if len(touched) == 0 {
		return
	}
	var changed *plan.Changed
	s.desired, changed = s.planner.Plan(s.view, plan.Touched{Unable: touched}, time.Now())
	todo.planned(changed)
	s.withdraw(todo)
}

// unfit returns why this node cannot answer for an address, empty if it can. While the node cannot be observed, the
// last observation counts: it very likely still holds.
func (s *Speaker) unfit(addr netip.Addr, lacking map[ipvs.Key]bool) plan.Reason {
	if s.known != nil {
		if s.forwards(addr, lacking) {
			s.fit[addr] = struct{}{}
		} else {
			delete(s.fit, addr)
		}
	}
	if !has(s.fit, addr) {
		return plan.DataPlaneNotReady
	}
	if s.kernelAnswers(addr) {
		return plan.KernelAnswers
	}
	if has(s.conflicts, addr) && !has(s.held, addr) { // while announced it is defended
		return plan.AddressConflict
	}
	return ""
}

// forwards reports whether packets to an address are forwarded: by IronLB or, if it does not serve the address, by
// another program.
func (s *Speaker) forwards(addr netip.Addr, lacking map[ipvs.Key]bool) bool {
	if !has(s.desired.Local, addr) {
		return s.known.sysctls.of(addr) == nil || has(s.announced, addr) || s.isRouted(addr)
	}
	return has(s.known.addrs, addr) && s.programmed(addr, lacking)
}

// kernelAnswers reports whether the kernel itself may answer for an address, here and so perhaps on every node. An
// address that is already announced is kept: its withdrawal would cost more than it saves.
func (s *Speaker) kernelAnswers(addr netip.Addr) bool {
	if s.known == nil {
		return s.unable[addr] == plan.KernelAnswers
	}
	return s.known.sysctls.answers(addr) != nil && !has(s.announced, addr)
}

// noteConflicts adds to the work the VirtualIPs whose conflict changed.
func (s *Speaker) noteConflicts(todo *work, before map[netip.Addr]plan.Conflict) {
	if len(before)+len(s.conflicts) == 0 || maps.Equal(before, s.conflicts) {
		return
	}
	for name, dec := range s.desired.VIPs {
		if slices.ContainsFunc(dec.Addresses, func(a netip.Addr) bool { return before[a] != s.conflicts[a] }) {
			todo.vips[name] = struct{}{}
		}
	}
}
