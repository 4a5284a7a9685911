package sim

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// trigger triggers the speaker's loop as soon as possible.
func (s *Speaker) trigger() {
	switch {
	case !s.runs():
	case s.acting:
		s.triggered = true
	default:
		s.round()
	}
}

// round observes and plans.
func (s *Speaker) round() {
	c := s.cluster
	s.triggered = false
	before := s.view.Members
	v := s.view
	var nodes map[string]struct{}
	var claims map[view.VIPID]struct{}
	start := s.clock()
	v.Members, nodes, claims = s.core.Members()
	s.Cost.Core += s.clock() - start
	c.died(s, before, nodes)
	s.touched.Members, s.touched.Claims = nodes, claims
	v.Leaving = s.leaving
	s.mustPublish = s.mustPublish || v.Members.Observer != before.Observer || v.Members.Fences != before.Fences || v.Leaving != s.published.Leaving
	wakes := s.planner.Wake()
	if s.desired != nil && !s.touched.Any() && !s.mustPublish && (wakes.IsZero() || wakes.After(s.time())) {
		s.rest(wakes)
		return
	}
	s.fences = s.core.Fences()
	start = s.clock()
	s.desired, s.planned = s.planner.Plan(v, s.touched, s.time())
	took := s.clock() - start
	s.Cost.Plan += took
	s.Cost.Plans++
	s.Cost.LongestPlan = max(s.Cost.LongestPlan, took)
	s.touched, s.acting, s.planLeaving = view.Touched{}, true, v.Leaving
	work := c.config.Work + time.Duration(len(s.planned.VIPs))*workPerVIP
	c.queue.push(event{at: c.now + int64(work), kind: act, node: s, boot: s.boot})
}

// workPerVIP is the time that each planned VirtualIP adds to a round.
const workPerVIP = 50 * time.Microsecond

// act applies the plan: withdraw, then publish the claims, then announce.
func (s *Speaker) act() {
	if !s.acting {
		return
	}
	c := s.cluster
	s.acting = false
	s.serves()
	var changed []int
	for addr := range s.planned.Addrs {
		vip, is := c.index[addr]
		if !is {
			continue
		}
		_, holds := s.holds[vip]
		if _, should := s.desired.Announce[addr]; should == holds {
			continue
		}
		changed = append(changed, vip)
	}
	slices.Sort(changed)
	for _, vip := range changed {
		if _, holds := s.holds[vip]; holds {
			delete(s.holds, vip)
		} else {
			s.holds[vip] = struct{}{}
			if why := s.moved(vip); why == view.OwnerLost || why == view.TakenOver {
				c.api.Written.Events++ // about its Service
			}
		}
	}
	s.publish()
	for _, vip := range changed {
		c.Owners.record(vip, s)
	}
	s.report()
	s.reportNode()
	if s.left() {
		return
	}
	if s.core.Urgent() {
		s.tick()
	}
	wakes := s.planner.Wake()
	if s.triggered || s.core.Changed() || s.touched.Any() || !wakes.IsZero() && !wakes.After(s.time()) {
		s.trigger()
		return
	}
	s.rest(wakes)
}

// report writes the statuses that differ from the API server's.
func (s *Speaker) report() {
	var vips []int
	for name := range s.planned.VIPs {
		vip := s.cluster.index[netip.MustParseAddr(name)]
		if _, holds := s.holds[vip]; holds && s.desired.VIPs[name].Reporter && s.cluster.api.differs(s, name) {
			vips = append(vips, vip)
		}
	}
	slices.Sort(vips)
	for _, vip := range vips {
		s.cluster.api.report(s, vip)
	}
}

// rest schedules the planner's next wake-up.
func (s *Speaker) rest(until time.Time) {
	at := int64(until.Sub(beginning) + s.behind)
	if until.IsZero() || s.wakeAt == at {
		return
	}
	s.wakeAt = at
	s.cluster.queue.push(event{at: s.wakeAt, kind: wake, node: s, boot: s.boot})
}

// publish publishes changed claims, unless they were planned before a fence.
func (s *Speaker) publish() {
	news := s.mustPublish
	for vip := range s.planned.VIPs {
		claim, claims := s.desired.Claims[vip]
		before, had := s.published.Claims[vip]
		if claims == had && claim == before {
			continue
		}
		news = true
		if claims {
			s.published.Claims[vip] = claim
		} else {
			delete(s.published.Claims, vip)
		}
	}
	if !news {
		return
	}
	s.mustPublish, s.published.Leaving = false, s.planLeaving
	if s.fences != s.core.Fences() {
		return
	}
	start := s.clock()
	s.core.Publish(view.LocalState{Claims: maps.Clone(s.published.Claims), Leaving: s.published.Leaving})
	s.Cost.Core += s.clock() - start
	s.seesFence()
}

// left ends a leaving process once its handovers are done, or at the deadline.
func (s *Speaker) left() bool {
	if !s.published.Leaving {
		return false
	}
	for _, claim := range s.published.Claims {
		if claim.State == view.HandingOver && s.cluster.now < s.leaveBy {
			return false
		}
	}
	s.cluster.carry(s, s.core.Tick(s.time(), s.time().Sub(beginning)))
	s.cluster.carry(s, s.core.Goodbye(0))
	s.stop()
	return true
}

// died records nodes newly considered dead on the LAN.
func (c *Cluster) died(s *Speaker, before view.Members, nodes map[string]struct{}) {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		_, on := s.view.Members.Peers[name].On[ifaces[LAN]]
		if _, was := before.Peers[name].On[ifaces[LAN]]; !was || on {
			continue
		}
		o := c.byName[name]
		c.Deaths = append(c.Deaths, Death{At: c.Now(), Node: s.Name, Dead: name,
			Wrong: o.runs() && o.ports[LAN].group == s.ports[LAN].group && !s.ports[LAN].asymmetric})
	}
}
