package sim

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
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
	// began is the start of the process, resumed the end of its last stall.
	began, resumed int64
	// behind is the total time for which its clock was stopped.
	behind time.Duration
	// queue is the limit of datagrams queued while it is paused.
	queue   int
	boot    uint32 // of its process; without a core no process runs
	waiting []event
	// lastRead is when it last read, by its own clock.
	lastRead time.Time

	core    *member.Core
	tickAt  int64
	planner *plan.Planner
	view    *view.View
	desired *plan.Desired
	touched view.Touched
	// acting is set from a plan until it is applied; triggered requests another plan. fences are those at the plan.
	acting, triggered bool
	fences            uint64
	planned           *plan.Changed
	wakeAt            int64
	published         view.LocalState
	mustPublish       bool
	fenced            bool
	leaveBy           int64
	leaving           bool // shutdown was requested; planLeaving: it was when the plan was made
	planLeaving       bool
	holds             map[int]struct{} // by index of the VirtualIP
	misses            []*Speaker       // whose datagrams do not reach this one
	watched           int64            // arrival of the last watch event
	complete          bool             // plans all VirtualIPs
	nodeReport        nodeReport

	Sent, Received Traffic
	Drops          map[member.Drop]int64
	Cost           Cost
	// Asked counts the questions of its prober.
	Asked int
}

// Cost is the CPU time of a speaker; only the first speaker is measured.
type Cost struct {
	Core, Plan  time.Duration
	Reach       time.Duration
	Plans       int
	LongestPlan time.Duration
	LongestTick time.Duration
}

// clock returns the CPU time of this thread; Run locks itself to it.
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

// concerns reports whether the speaker plans a VirtualIP.
func (s *Speaker) concerns(vip view.VIP) bool {
	return s.complete || vip.ReportedOwner == s.Name || slices.Contains(vip.Nodes, s.Name)
}

// viewed returns a VirtualIP of its View.
func (s *Speaker) viewed(name string) (vip view.VIP, has bool) {
	if s.view != nil {
		vip, has = s.view.VIPs[name]
	}
	return vip, has
}

// runs reports whether its process exists and is not stalled.
func (s *Speaker) runs() bool { return s.power && !s.paused && s.core != nil }

// audible reports whether it answers clients. A port of a group below zero is cut off.
func (s *Speaker) audible() bool {
	return s.runs() && !s.fenced && s.ports[LAN].group >= 0 && s.ports[LAN].lossIn < 1
}

func (s *Speaker) held() []int { return slices.Sorted(maps.Keys(s.holds)) }

func (s *Speaker) moved(vip int) view.Reason {
	return s.desired.VIPs[s.cluster.vips[vip].String()].Moved
}

// Start switches the node on and starts its process.
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
		Node: s.Name, Interval: c.config.Profile.Interval,
		Options: forwarding.Options{ServiceProxy: c.config.ClusterIPs > 0, ResetAfter: 10 * time.Second},
	})
	s.view, s.desired, s.touched = c.api.view(s), nil, view.Touched{All: true}
	s.view.Members.Observer = true
	s.published, s.leaveBy, s.Drops = view.LocalState{Claims: map[string]view.Claim{}}, 0, map[member.Drop]int64{}
	core.SetPeers(c.api.peers)
	mac := [6]byte{2, 0, 0, 0, byte(s.number >> 8), byte(s.number)}
	core.SetLinks(s.time(), []member.Link{{Name: ifaces[LAN], Keys: segment, MAC: mac}})
	s.startProber()
	s.tick()
}

// stop ends the process without a goodbye.
func (s *Speaker) stop() {
	held := s.held()
	s.stopProber()
	s.boot++
	s.leaving, s.planLeaving = false, false
	s.core, s.waiting, s.planned, s.tickAt, s.wakeAt = nil, nil, nil, 0, 0
	s.nodeReport = nodeReport{}
	s.paused, s.acting, s.triggered, s.fenced = false, false, false, false
	clear(s.holds)
	for _, vip := range held {
		s.cluster.Owners.record(vip, s)
	}
}

// PowerOff cuts the node's power.
func (s *Speaker) PowerOff() {
	s.cluster.set(&s.host, func() { s.power = false })
	s.stop()
}

// Crash ends only the process.
func (s *Speaker) Crash() { s.stop() }

// Leave starts a graceful shutdown of the process.
func (s *Speaker) Leave() {
	s.leaving = true
	s.leaveBy = s.cluster.now + int64(5*time.Second)
	s.trigger()
}

// time returns the node's clock.
func (s *Speaker) time() time.Time { return s.cluster.time().Add(-s.behind) }

// Suspend stops the node and its clock for a time, as a hypervisor suspends a virtual machine: nothing in it shows that
// time has passed. queue is the limit of datagrams queued in its network card.
func (s *Speaker) Suspend(d time.Duration, queue int) {
	behind, before := s.behind, s.queue
	c, h := s.cluster, &s.host
	s.queue = queue
	c.set(h, func() { h.suspended = true })
	c.After(d, func() { c.set(h, func() { h.suspended = false }) })
	s.Pause(d)
	c.After(d, func() { s.queue = before })
	s.behind = behind + d // the clock when it resumes
}

// Pause stalls the process for a time.
func (s *Speaker) Pause(d time.Duration) {
	s.paused = true
	s.cluster.Owners.refresh(s)
	boot := s.boot
	s.cluster.After(d, func() {
		if s.boot != boot {
			return
		}
		s.paused, s.resumed = false, s.cluster.now
		s.fenced = s.fenced || s.core.Outdated(s.time()) // the responders check it before the loop does
		s.tick()
		s.cluster.Owners.refresh(s)
		if s.acting {
			s.act()
		}
		s.prober.at = 0 // a tick due meanwhile was void
		s.wakeProber(s.cluster.now)
		s.trigger()
	})
}

// Group moves the node's ports into a group; only ports of one group reach one another. Below zero it is cut off from
// clients, too.
func (s *Speaker) Group(group int, networks ...int) {
	s.cluster.set(&s.host, func() {
		for _, n := range networks {
			s.ports[n].group = group
		}
	})
	s.cluster.Owners.refresh(s)
}

// SetAsymmetric makes the links of all the node's ports asymmetric (receiving nothing), or restores them.
func (s *Speaker) SetAsymmetric(on bool) {
	for i := range s.ports {
		s.ports[i].asymmetric = on
	}
}

// LoseIn loses a share of the packets to the node on networks, 1 for all of them, and none of those that it sends.
func (s *Speaker) LoseIn(share float64, networks ...int) {
	s.cluster.set(&s.host, func() {
		for _, n := range networks {
			s.ports[n].lossIn = share
		}
	})
	s.cluster.Owners.refresh(s)
}

// socketBuffer is the number of datagrams queued for a stalled process.
const socketBuffer = 500

// Busy reports whether its node is one of Busy.Share.
func (s *Speaker) Busy() bool { return s.busy }

// Healthy reports whether its process runs and its ports are in the main group.
func (s *Speaker) Healthy() bool {
	return s.runs() && s.ports[LAN].group == 0 && s.ports[NodeNetwork].group == 0
}

// Steady reports whether it has been healthy and unchanged since then.
func (s *Speaker) Steady(since time.Duration) bool {
	return s.Healthy() && s.began <= int64(since) && s.changed <= int64(since) && s.resumed <= int64(since)
}

// Running reports whether its process exists, Observes whether it claims nothing yet.
func (s *Speaker) Running() bool  { return s.core != nil }
func (s *Speaker) Observes() bool { return s.core == nil || s.view.Members.Observer }
