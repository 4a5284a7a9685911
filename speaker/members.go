package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// observeMembers adds to the View the state of the other members and of this node.
func (s *Speaker) observeMembers(v *view.View, touched *view.Touched) {
	before := v.Members
	v.Members, touched.Members, touched.Claims = s.cfg.Detector.Observe()
	s.observeDirect(v, touched)
	v.Unable, v.Leaving = s.unable, s.leaving.Load()
	s.mustPublish = s.mustPublish || v.Members.Observer != before.Observer || v.Members.Fences != before.Fences || v.Leaving != s.published.Leaving ||
		(v.NotDirect == "") != s.published.Direct || v.DirectIPv4Only != s.published.DirectIPv4Only
	if v.Members.Observer && !before.Observer {
		s.status.Clear() // other nodes own the addresses by now and report them
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

// observeDirect adds to the View whether this node can use tunnels, and has the return routes.
func (s *Speaker) observeDirect(v *view.View, touched *view.Touched) {
	reason, why := s.dataplane.NotDirect()
	s.noTunnel = reason
	s.missingReturn.observe(v, touched, time.Now(), s.desired == nil)
	if reason == "" && s.missingReturn.counts {
		reason, why = view.NoReturnRoute, s.missingReturn.why
	}
	if touched.NotDirect = reason != s.notDirect; touched.NotDirect {
		if reason == "" {
			s.cfg.Log.Info("this node can be forwarded to directly")
		} else if s.cfg.Node.Direct != nil {
			s.cfg.Log.Info("this node cannot be forwarded to directly: Services are forwarded to endpoints", "reason", reason, "error", why)
		}
	}
	only, why := s.dataplane.DirectIPv4Only()
	if only != v.DirectIPv4Only {
		touched.NotDirect = true
		if only {
			s.cfg.Log.Info("this node cannot use tunnels for IPv6: IPv6 addresses are forwarded to endpoints", "error", why)
		} else if reason == "" {
			s.cfg.Log.Info("this node can use tunnels for IPv6")
		}
	}
	s.notDirect, v.NotDirect, v.DirectIPv4Only = reason, reason, only
}

// setSegments sets the interfaces on which to receive other members, according to the plan.
func (s *Speaker) setSegments(touched view.Touched, changed *plan.Changed) {
	if changed.Segments || len(touched.Links) > 0 {
		s.cfg.Detector.SetSegments(slices.Sorted(maps.Keys(s.desired.Segments)))
	}
}

// publishClaims publishes this node's claims for the VirtualIPs of the work, as far as may allows it. A claim is
// published before the first answer, and its end after the last one.
func (s *Speaker) publishClaims(todo *work, may func(vip string) bool) {
	changed := s.mustPublish
	for name := range todo.vips {
		claim, is := s.desired.Claims[name]
		before, was := s.published.Claims[name]
		if is == was && claim == before || is && claim.State == view.Held && !before.Announces() && !may(name) {
			continue
		}
		changed = true
		if is {
			s.published.Claims[name] = claim
		} else {
			delete(s.published.Claims, name)
		}
	}
	if !changed {
		return
	}
	s.mustPublish, s.published.Leaving = false, s.view.Leaving
	s.published.Direct, s.published.DirectIPv4Only = s.view.NotDirect == "", s.view.DirectIPv4Only // as planned
	state := s.published
	state.Claims = maps.Clone(state.Claims)
	s.cfg.Detector.Publish(state)
}

// evaluateReadiness records which addresses of the work this node cannot answer for, and plans again if that changed.
func (s *Speaker) evaluateReadiness(todo *work) {
	addrs := todo.Addresses()
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
	s.addConflicts(todo, before)
	s.dataplane.Evaluate(addrs)
	touched := map[netip.Addr]struct{}{}
	for addr := range addrs {
		why := s.notReadyReason(addr)
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
	s.desired, changed = s.planner.Plan(s.view, view.Touched{Unable: touched}, time.Now())
	todo.planned(changed)
	s.updateParts()
	s.withdraw(todo)
}

// notReadyReason returns why this node cannot answer for an address, empty if it can.
func (s *Speaker) notReadyReason(addr netip.Addr) view.Reason {
	if !s.dataplane.Forwards(addr) {
		return view.DataPlaneNotReady
	}
	answers, observed := s.dataplane.KernelAnswers(addr)
	if answers || !observed && s.unable[addr] == view.KernelAnswers {
		return view.KernelAnswers
	}
	if has(s.conflicts, addr) && !has(s.l2.Held(), addr) { // while announced it is defended
		return view.AddressConflict
	}
	return ""
}

// addConflicts adds to the work the VirtualIPs whose conflict changed.
func (s *Speaker) addConflicts(todo *work, before map[netip.Addr]view.Conflict) {
	if len(before)+len(s.conflicts) == 0 || maps.Equal(before, s.conflicts) {
		return
	}
	for name, dec := range s.desired.VIPs {
		if slices.ContainsFunc(dec.Addresses, func(a netip.Addr) bool { return before[a] != s.conflicts[a] }) {
			todo.vips[name] = struct{}{}
		}
	}
}
