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

const (
	// slotsDifferAfter is how long the slots of another node differ before that is reported. A change reaches the nodes
	// one after another, and a node that starts or joins needs some seconds.
	slotsDifferAfter = 10 * time.Second
	// slotsSamples is how many digests of another node are kept for each period.
	slotsSamples = 2 * int(slotsDifferAfter/time.Second)
)

// agreement compares the slots of direct forwarding of this node with those of the others, by their digests. While they
// change all the time, the digests of two nodes may never be equal at once, although they agree: one is behind. So a
// digest of another node counts as equal to any that this node has had, and the other way round.
type agreement struct {
	// own are the digests of this node with the last time at which each was in force.
	own    map[uint64]time.Time
	others map[string]*disagreement
}

// disagreement is a node whose digest differs.
type disagreement struct {
	// samples are its last digests, agreed the last time at which one of them was this node's.
	samples []uint64
	agreed  time.Time
}

// compare returns the names of the nodes that differ for too long, sorted. others are the digests that differ from own.
func (a *agreement) compare(now time.Time, own uint64, others map[string]uint64) (differ []string) {
	if a.own == nil {
		a.own, a.others = map[uint64]time.Time{}, map[string]*disagreement{}
	}
	a.own[own] = now
	maps.DeleteFunc(a.own, func(_ uint64, last time.Time) bool { return now.Sub(last) > slotsDifferAfter })
	maps.DeleteFunc(a.others, func(name string, _ *disagreement) bool { return !has(others, name) })
	for name, digest := range others {
		d := a.others[name]
		if d == nil {
			d = &disagreement{agreed: now}
			a.others[name] = d
		}
		if n := len(d.samples); n == 0 || d.samples[n-1] != digest {
			d.samples = append(d.samples[max(0, n+1-slotsSamples):], digest)
		}
		for _, sample := range d.samples {
			if last, was := a.own[sample]; was && last.After(d.agreed) {
				d.agreed = last
			}
		}
		if now.Sub(d.agreed) >= slotsDifferAfter {
			differ = append(differ, name)
		}
	}
	slices.Sort(differ)
	return differ
}

// compareSlots publishes the digest of this node's slots, and records the nodes whose slots differ for long.
func (s *Speaker) compareSlots(now time.Time) {
	if s.cfg.Node.Direct == nil {
		return
	}
	own := s.desired.SlotsDigest
	differ := s.agreement.compare(now, own, s.cfg.Detector.CompareSlots(own))
	if slices.Equal(differ, s.slotsDiffer) {
		return
	}
	if len(differ) > 0 {
		s.cfg.Log.Warn("nodes direct connections to other nodes than this one: connections break when they move between them",
			"nodes", len(differ), "first", differ[:min(len(differ), slotsLogged)])
	} else {
		s.cfg.Log.Info("all nodes direct connections to the same nodes as this one")
	}
	s.slotsDiffer = differ
	s.cfg.Metrics.differ.Set(float64(len(differ)))
}

// slotsLogged is the maximum number of nodes in a line of the log.
const slotsLogged = 10

// returnPatience is how long a return route may be missing, as while its interface is down, before the node counts as
// unable to be forwarded to directly: every such change moves connections.
const returnPatience = 10 * time.Second

// missingReturn is why this node has no return route of a pool: the answers of its endpoints might be lost.
type missingReturn struct {
	why   string
	since time.Time
	// counts is set once it has lasted.
	counts bool
}

// observe updates it from the View. At the start it counts at once: no connection relies on this node yet.
func (m *missingReturn) observe(v *view.View, touched *view.Touched, now time.Time, first bool) {
	if first || touched.All || touched.Pools || touched.ReturnRoutes || touched.Host || len(touched.Links) > 0 {
		before := m.why
		if m.why = plan.MissingReturn(v); m.why == "" {
			*m = missingReturn{}
		} else if before == "" {
			m.since = now
		}
		m.counts = m.counts || first && m.why != ""
	}
	m.counts = m.counts || m.why != "" && now.Sub(m.since) >= returnPatience
}
