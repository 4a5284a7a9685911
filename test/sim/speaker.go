package sim

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/plan"
)

// Speaker is a node with its speaker.
type Speaker struct {
	cluster *Cluster
	Name    string
	number  int
	host
	prober prober
	// paused is set while its process is stopped.
	paused bool
	// began is when the process did, resumed when it went on after its last stall.
	began, resumed int64
	// behind is for how long its clock was stopped in all.
	behind time.Duration
	// queue is how many datagrams wait for it while it is paused.
	queue   int
	boot    uint32 // of its process; it does not run while core is nil
	waiting []event

	core    *member.Core
	turnAt  int64
	planner *plan.Planner
	view    *plan.View
	desired *plan.Desired
	touched plan.Touched
	// acting is set from a plan until it is done; kicked: then plan again. fences are those at the plan.
	acting, kicked bool
	fences         uint64
	planned        *plan.Changed
	wakeAt         int64
	said           plan.Word
	mustSay        bool
	fenced         bool
	leaveBy        int64
	leaving        bool // it was asked to end; planLeaving: it was when the plan was made
	planLeaving    bool
	holds          map[int]struct{} // by number of the VirtualIP
	watched        int64            // when the last change of the API arrives

	Sent, Received Traffic
	Drops          map[member.Drop]int64
	Cost           Cost
	// Asked are the questions that its prober asked.
	Asked int
}

// Cost is the CPU time that a speaker took; only that of the first one is measured.
type Cost struct {
	Core, Plan  time.Duration
	Reach       time.Duration
	Plans       int
	LongestPlan time.Duration
	LongestTurn time.Duration
}

// clock is the CPU time of this thread, on which Run stays.
func (s *Speaker) clock() time.Duration {
	if s.number != 0 {
		return 0
	}
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

var secret = []byte("0123456789abcdef0123456789abcdef")

var segment = member.SegmentKeys("eth0", []netip.Prefix{lanSubnet})

// runs tells whether its process does something.
func (s *Speaker) runs() bool { return s.power && !s.paused && s.core != nil }

// audible tells whether clients get its answers. A port of a group below zero is cut off.
func (s *Speaker) audible() bool { return s.runs() && !s.fenced && s.ports[LAN].group >= 0 }

func (s *Speaker) held() []int { return slices.Sorted(maps.Keys(s.holds)) }

func (s *Speaker) moved(vip int) plan.Reason {
	return s.desired.VIPs[s.cluster.vips[vip].String()].Moved
}

// Start switches the node on and begins its process.
func (s *Speaker) Start() {
	c := s.cluster
	s.stop()
	s.queue, s.began = socketBuffer, c.now
	if !s.power {
		c.set(&s.host, func() { s.power = true })
	}
	core, err := member.NewCore(member.Config{
		Node: s.Name, Cluster: "default", Incarnation: uint64(c.now) + 1, Keys: [][]byte{secret}, Profile: c.config.Profile,
		Seed: c.config.Seed<<20 + uint64(s.number)<<8 + uint64(s.boot),
	})
	if err != nil {
		panic(err)
	}
	s.core = core
	s.planner = plan.NewPlanner(plan.Options{
		Node: s.Name, Interval: c.config.Profile.Interval, ServiceProxy: c.config.ClusterIPs > 0, ResetAfter: 10 * time.Second,
	})
	s.view, s.desired, s.touched = c.api.view(), nil, plan.Touched{All: true}
	s.view.Members.Observer = true
	s.said, s.leaveBy, s.Drops = plan.Word{Claims: map[string]plan.Claim{}}, 0, map[member.Drop]int64{}
	core.SetPeers(c.api.peers)
	mac := [6]byte{2, 0, 0, 0, byte(s.number >> 8), byte(s.number)}
	core.SetLinks(s.time(), []member.Link{{Name: ifaces[LAN], Keys: segment, MAC: mac}})
	s.startProber()
	s.turn()
}

// stop ends the process, without a word.
func (s *Speaker) stop() {
	held := s.held()
	s.stopProber()
	s.boot++
	s.leaving, s.planLeaving = false, false
	s.core, s.waiting, s.planned, s.turnAt, s.wakeAt = nil, nil, nil, 0, 0
	s.paused, s.acting, s.kicked, s.fenced = false, false, false, false
	clear(s.holds)
	for _, vip := range held {
		s.cluster.Owners.note(vip, s)
	}
}

// PowerOff takes the node's power.
func (s *Speaker) PowerOff() {
	s.cluster.set(&s.host, func() { s.power = false })
	s.stop()
}

// Crash ends the process alone.
func (s *Speaker) Crash() { s.stop() }

// Leave asks the process to end politely.
func (s *Speaker) Leave() {
	s.leaving = true
	s.leaveBy = s.cluster.now + int64(5*time.Second)
	s.kick()
}

// time is what the node's clock shows.
func (s *Speaker) time() time.Time { return s.cluster.time().Add(-s.behind) }

// Suspend stops the node and its clock for a time, as a hypervisor does with a virtual machine: nothing in it shows
// that time has passed. queue is how many datagrams wait for it in its network card.
func (s *Speaker) Suspend(d time.Duration, queue int) {
	behind, before := s.behind, s.queue
	c, h := s.cluster, &s.host
	s.queue = queue
	c.set(h, func() { h.suspended = true })
	c.After(d, func() { c.set(h, func() { h.suspended = false }) })
	s.Pause(d)
	c.After(d, func() { s.queue = before })
	s.behind = behind + d // what the clock shows when it goes on
}

// Pause makes the process stand still for a time.
func (s *Speaker) Pause(d time.Duration) {
	last := s.time()
	s.paused = true
	s.cluster.Owners.refresh(s)
	boot := s.boot
	s.cluster.After(d, func() {
		if s.boot != boot {
			return
		}
		s.paused, s.resumed = false, s.cluster.now
		s.fenced = s.fenced || s.time().Sub(last) > s.core.FenceAfter() // the responders see it before the loop does
		for i := range s.waiting {
			s.read(&s.waiting[i])
		}
		s.waiting = nil
		s.turn()
		s.cluster.Owners.refresh(s)
		if s.acting {
			s.act()
		}
		s.prober.at = 0 // a tick that was due meanwhile was void
		s.wakeProber(s.cluster.now)
		s.kick()
	})
}

// Group puts the node's ports into a group that only its members reach; below zero: cut off from clients, too.
func (s *Speaker) Group(group int, networks ...int) {
	s.cluster.set(&s.host, func() {
		for _, n := range networks {
			s.ports[n].group = group
		}
	})
	s.cluster.Owners.refresh(s)
}

// Deafen makes all of the node's ports receive nothing, or again.
func (s *Speaker) Deafen(deaf bool) {
	for i := range s.ports {
		s.ports[i].deaf = deaf
	}
}

// socketBuffer is how many datagrams wait for a process that stands still.
const socketBuffer = 500

// arrive takes in a datagram that reaches the node.
func (s *Speaker) arrive(e *event) {
	if !s.power {
		return
	}
	s.Received.add(len(e.data))
	if s.core == nil {
		return
	}
	if s.paused {
		if len(s.waiting) < s.queue {
			s.waiting = append(s.waiting, *e)
		}
		return
	}
	s.read(e)
	switch {
	case s.core.Urgent():
		s.turn()
	case s.core.Changed():
		s.kick()
	}
}

func (s *Speaker) read(e *event) {
	start := s.clock()
	in := member.Packet{Iface: ifaces[e.iface], Source: e.from.addrs[e.iface], OnLink: true, Data: e.data}
	drop := s.core.Receive(s.time(), s.time().Sub(beginning), in)
	s.Cost.Core += s.clock() - start
	if drop != member.Taken {
		s.Drops[drop]++
	}
}

// turn is one turn of the liveness loop, after it has read.
func (s *Speaker) turn() {
	c := s.cluster
	start := s.clock()
	sends := s.core.Tick(s.time(), s.time().Sub(beginning))
	took := s.clock() - start
	s.Cost.Core += took
	s.Cost.LongestTurn = max(s.Cost.LongestTurn, took)
	c.carry(s, sends)
	s.seesFence()
	s.passReceived()
	if s.core.Changed() {
		s.kick()
	}
	// A timer and the scheduler are late by up to a millisecond, more on a busy node.
	late := time.Millisecond
	if s.busy {
		late = max(late, c.config.Busy.Heartbeat)
	}
	s.turnAt = max(c.now, int64(s.core.Next().Sub(beginning)+s.behind)) + c.random.Int64N(int64(late))
	if s.core.Urgent() {
		s.turnAt = c.now
	}
	c.queue.push(event{at: s.turnAt, kind: turn, node: s, boot: s.boot})
}

// seesFence tells the responders whether they may answer.
func (s *Speaker) seesFence() {
	if f := s.core.Fenced(); f != s.fenced {
		s.fenced = f
		s.cluster.Owners.refresh(s)
	}
}

// kick makes the speaker's loop plan as soon as it can.
func (s *Speaker) kick() {
	switch {
	case !s.runs():
	case s.acting:
		s.kicked = true
	default:
		s.round()
	}
}

// round observes and plans.
func (s *Speaker) round() {
	c := s.cluster
	s.kicked = false
	before := s.view.Members
	v := s.view
	var nodes map[string]struct{}
	var claims map[plan.VIPID]struct{}
	start := s.clock()
	v.Members, nodes, claims = s.core.Members()
	s.Cost.Core += s.clock() - start
	c.died(s, before, nodes)
	s.touched.Members, s.touched.Claims = nodes, claims
	v.Leaving = s.leaving
	s.mustSay = s.mustSay || v.Members.Observer != before.Observer || v.Leaving != s.said.Leaving
	wakes := s.planner.Wake()
	if s.desired != nil && !s.touched.Any() && !s.mustSay && (wakes.IsZero() || wakes.After(s.time())) {
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
	s.touched, s.acting, s.planLeaving = plan.Touched{}, true, v.Leaving
	work := c.config.Work + time.Duration(len(s.planned.VIPs))*workPerVIP
	c.queue.push(event{at: c.now + int64(work), kind: act, node: s, boot: s.boot})
}

// workPerVIP is what one more VirtualIP to be decided adds to what a round takes.
const workPerVIP = 50 * time.Microsecond

// act does what was planned: no answer goes on that should not, then the others are told, then what is new is answered for.
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
		}
	}
	s.say()
	for _, vip := range changed {
		c.Owners.note(vip, s)
	}
	s.report()
	if s.left() {
		return
	}
	if s.core.Urgent() {
		s.turn()
	}
	wakes := s.planner.Wake()
	if s.kicked || s.core.Changed() || s.touched.Any() || !wakes.IsZero() && !wakes.After(s.time()) {
		s.kick()
		return
	}
	s.rest(wakes)
}

// report says what the API server has otherwise.
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

// rest waits for the time when to plan again although nothing happened.
func (s *Speaker) rest(until time.Time) {
	at := int64(until.Sub(beginning) + s.behind)
	if until.IsZero() || s.wakeAt == at {
		return
	}
	s.wakeAt = at
	s.cluster.queue.push(event{at: s.wakeAt, kind: wake, node: s, boot: s.boot})
}

// say tells the others, unless what is to be told was decided before a fence.
func (s *Speaker) say() {
	news := s.mustSay
	for vip := range s.planned.VIPs {
		claim, says := s.desired.Claims[vip]
		before, said := s.said.Claims[vip]
		if says == said && claim == before {
			continue
		}
		news = true
		if says {
			s.said.Claims[vip] = claim
		} else {
			delete(s.said.Claims, vip)
		}
	}
	if !news {
		return
	}
	s.mustSay, s.said.Leaving = false, s.planLeaving
	if s.fences != s.core.Fences() {
		return
	}
	start := s.clock()
	s.core.Say(plan.Word{Claims: maps.Clone(s.said.Claims), Leaving: s.said.Leaving})
	s.Cost.Core += s.clock() - start
	s.seesFence()
}

// left ends the process if it was to leave and need not wait any more.
func (s *Speaker) left() bool {
	if !s.said.Leaving {
		return false
	}
	for _, claim := range s.said.Claims {
		if claim.State == plan.Leaving && s.cluster.now < s.leaveBy {
			return false
		}
	}
	s.cluster.carry(s, s.core.Tick(s.time(), s.time().Sub(beginning)))
	s.cluster.carry(s, s.core.Goodbye(0))
	s.stop()
	return true
}

// died notes whom a node takes for dead where it matters.
func (c *Cluster) died(s *Speaker, before plan.Members, nodes map[string]struct{}) {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		_, on := s.view.Members.Peers[name].On[ifaces[LAN]]
		if _, was := before.Peers[name].On[ifaces[LAN]]; !was || on {
			continue
		}
		o := c.byName[name]
		c.Deaths = append(c.Deaths, Death{At: c.Now(), Node: s.Name, Dead: name,
			Wrong: o.runs() && o.ports[LAN].group == s.ports[LAN].group && !s.ports[LAN].deaf})
	}
}

// Busy reports whether its node is one of Busy.Share.
func (s *Speaker) Busy() bool { return s.busy }

// Healthy reports whether its process runs, and its ports are up.
func (s *Speaker) Healthy() bool {
	return s.runs() && s.ports[LAN].group == 0 && s.ports[NodeNetwork].group == 0
}

// Steady reports whether that was so all the time since then.
func (s *Speaker) Steady(since time.Duration) bool {
	return s.Healthy() && s.began <= int64(since) && s.changed <= int64(since) && s.resumed <= int64(since)
}

// Running tells whether its process exists, Observes whether that claims nothing yet.
func (s *Speaker) Running() bool  { return s.core != nil }
func (s *Speaker) Observes() bool { return s.core == nil || s.view.Members.Observer }
