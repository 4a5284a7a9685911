package member_test

import (
	"container/heap"
	"fmt"
	"hash"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/view"
)

// world is a virtual network with a virtual clock: each node is on a LAN (eth0), where addresses are announced, and on
// a node network (eth1), which has the InternalIPs.
type world struct {
	t      testing.TB
	now    time.Time
	random *rand.Rand
	queue  queue
	nodes  []*machine
	byAddr map[netip.Addr]*machine
	// loss is the share of lost datagrams, delay the transit time of one.
	loss  float64
	delay func() time.Duration
	// drop loses selected datagrams.
	drop func(from, to *machine, iface string) bool
	// dropGroup loses datagrams to the group, dropTo those to selected addresses.
	dropGroup bool
	dropTo    func(netip.Addr) bool
	// internal returns the InternalIPs of a node, those of IPv6 on the interface iface6.
	internal func(*machine) []netip.Addr
	iface6   string
	// dropGroupAt loses datagrams to the group at one node's port.
	dropGroupAt *machine
	// ipv4 is set if some nodes have IPv4 on the LAN and others do not.
	ipv4 bool
	// watch runs after each tick of a node.
	watch func(*machine)
	sent  int
	// unicast is how many of these were not to the group.
	unicast int
	woken   int         // how often a loop has woken
	hash    hash.Hash64 // of all sent datagrams
}

// machine is a node: its Core, and its simulated faults.
type machine struct {
	*member.Core
	name     string
	addr     netip.Addr
	addr6    netip.Addr
	lan      netip.Addr
	waiting  []arrived
	read     time.Time // when it last read, by its own clock
	nextTick time.Time // time of the loop's next tick
	off      bool
	members  view.Members
	nodes    map[string]struct{}
	vips     map[view.VIPID]struct{}
	drops    map[member.Drop]int
	late     func() time.Duration // of each tick
	traffic  []member.Packet      // received datagrams, if record is set
	record   bool
	// slew is the slew rate of its clock, skew the rate error of its oscillator; slewed and skewed are the resulting
	// offsets of its two clocks at the time set.
	slew, skew     float64
	slewed, skewed time.Duration
	set            time.Time
	// stopped is how far its clock is behind; asleep is set while it is paused together with its clock.
	stopped   time.Duration
	asleep    bool
	ipv4      bool // its LAN has an IPv4 subnet
	dead      bool // no power: its kernel does not answer either
	unplugged bool // its LAN has no carrier
	// probed is when it probed away nodes; answered and silent are the results.
	probed           time.Time
	answered, silent []member.Neighbor
}

// arrived is a datagram in the kernel, with its time of arrival.
type arrived struct {
	at time.Time
	member.Packet
}

type event struct {
	at     time.Time
	order  int
	to     *machine // nil: a tick of from
	packet member.Packet
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any     { old := *q; e := old[len(old)-1]; *q = old[:len(old)-1]; return e }

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(t testing.TB, nodes int, change ...func(*member.Config)) *world {
	w := &world{t: t, now: epoch, random: rand.New(rand.NewPCG(1, uint64(nodes))), byAddr: map[netip.Addr]*machine{}, hash: fnv.New64a()}
	w.delay = func() time.Duration { return 100*time.Microsecond + time.Duration(w.random.IntN(400))*time.Microsecond }
	w.internal = func(m *machine) []netip.Addr { return []netip.Addr{m.addr} }
	for i := range nodes {
		m := &machine{name: fmt.Sprintf("node-%d", i+1)}
		m.addr = netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})
		m.addr6 = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(i + 1)})
		m.lan = netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		w.nodes = append(w.nodes, m)
		w.byAddr[m.addr], w.byAddr[m.addr6], w.byAddr[m.lan] = m, m, m
	}
	for _, m := range w.nodes {
		w.boot(m, 1, change...)
	}
	return w
}

// boot starts a node's process, a while after the others.
func (w *world) boot(m *machine, incarnation uint64, change ...func(*member.Config)) {
	c := member.Config{Node: m.name, Cluster: "default", Incarnation: incarnation, Keys: [][]byte{secret}, Profile: member.Standard, Seed: incarnation}
	for _, f := range change {
		f(&c)
	}
	var err error
	if m.Core, err = member.NewCore(c); err != nil {
		w.t.Fatal(err)
	}
	peers := map[string][]netip.Addr{}
	for _, n := range w.nodes {
		peers[n.name] = w.internal(n)
	}
	m.SetPeers(peers)
	m.off, m.dead, m.waiting, m.members, m.drops = false, false, nil, view.Members{}, map[member.Drop]int{}
	m.nodes, m.vips = map[string]struct{}{}, map[view.VIPID]struct{}{}
	m.nextTick = w.now.Add(time.Duration(w.random.IntN(int(c.Profile.Interval))))
	w.link(m, true)
}

var (
	lanSubnet = netip.MustParsePrefix("192.0.2.1/24")
	lanKeys   = member.SegmentKeys("eth0", []netip.Prefix{lanSubnet})
)

// link gives a node its LAN, or removes it as a lost carrier does.
func (w *world) link(m *machine, up bool) {
	var links []member.Link
	m.unplugged = !up
	if up {
		links = []member.Link{{Name: "eth0", Keys: lanKeys, MAC: [6]byte{2, 0, 0, 0, 0, m.lan.As4()[3]}, IPv4: m.ipv4}}
	}
	m.SetLinks(w.now, links)
}

// run advances time until a condition holds, at most by most, and returns how long it took.
func (w *world) run(most time.Duration, until func() bool) (took time.Duration, ok bool) {
	start, end := w.now, w.now.Add(most)
	for {
		if until != nil && until() {
			return w.now.Sub(start), true
		}
		next := w.next()
		if next == nil || next.nextTick.After(end) {
			w.deliver(end)
			w.now = end
			return most, false
		}
		w.deliver(next.nextTick)
		w.now = next.nextTick
		w.tick(next)
	}
}

// must is run that fails the test if the condition does not hold.
func (w *world) must(what string, most time.Duration, until func() bool) time.Duration {
	w.t.Helper()
	took, ok := w.run(most, until)
	if !ok {
		w.t.Fatalf("not %s within %v", what, most)
	}
	return took
}

func (w *world) next() (first *machine) {
	for _, m := range w.nodes {
		if m.off || m.asleep {
			continue
		}
		if first == nil || m.nextTick.Before(first.nextTick) {
			first = m
		}
	}
	for len(w.queue) > 0 && w.queue[0].to.off {
		heap.Pop(&w.queue)
	}
	// A delivery wakes its node at once, unless it may be read later.
	for len(w.queue) > 0 && (first == nil || w.queue[0].at.Before(first.nextTick)) {
		e := w.queue[0]
		to := e.to
		switch {
		case to.off:
			heap.Pop(&w.queue)
			continue
		case to.late != nil || to.asleep || !to.nextTick.After(e.at) || to.nextTick.Sub(e.at) >= 2*time.Second:
			return first
		case to.defers(e.packet):
			heap.Pop(&w.queue)
			to.waiting = append(to.waiting, arrived{e.at, e.packet})
			continue
		}
		to.nextTick = e.at
		return to
	}
	return first
}

// defers reports whether a datagram does not wake the node's loop.
func (m *machine) defers(p member.Packet) bool {
	return !m.Attentive() && (p.Group || member.Routine(p.Data))
}

func (w *world) deliver(until time.Time) {
	for len(w.queue) > 0 && !w.queue[0].at.After(until) {
		e := heap.Pop(&w.queue).(event)
		if !e.to.off && !(e.to.asleep && len(e.to.waiting) >= asleepMost) {
			e.to.waiting = append(e.to.waiting, arrived{e.at, e.packet})
		}
	}
}

// asleepMost is how many datagrams the network card's queue of a paused machine holds; later ones are lost.
const asleepMost = 256

// pause stops a machine and its clock for a time, as a hypervisor does.
func (w *world) pause(m *machine, d time.Duration) {
	m.asleep = true
	timer := m.nextTick.Sub(w.now)
	w.run(d, nil)
	m.asleep, m.stopped, m.nextTick = false, m.stopped+d, w.now.Add(timer)
	if slices.ContainsFunc(m.waiting, func(p arrived) bool { return !m.defers(p.Packet) }) {
		m.nextTick = w.now
	}
}

// clock returns the time by the machine's own clock, which may be slewed.
func (m *machine) clock(w *world) time.Time {
	since := float64(w.now.Sub(m.set))
	if m.set.IsZero() {
		since = 0
	}
	m.slewed += time.Duration(m.slew * since)
	m.skewed += time.Duration(m.skew * since)
	m.set = w.now
	return w.now.Add(m.slewed + m.skewed - m.stopped)
}

// raw returns the time by the machine's clock that is not slewed.
func (m *machine) raw(w *world) time.Duration { return m.clock(w).Sub(epoch) - m.slewed }

func (w *world) checkAttention(m *machine) {
	if err := m.CheckAttention(); err != nil {
		w.t.Helper()
		w.t.Fatalf("%s at %v: %v", m.name, w.now.Sub(epoch), err)
	}
}

// tick is one tick of a node's loop.
func (w *world) tick(m *machine) {
	now, raw := m.clock(w), m.raw(w)
	w.woken++
	for _, p := range m.waiting {
		if m.record {
			m.traffic = append(m.traffic, p.Packet)
		}
		age := min(w.now.Sub(p.at), now.Sub(m.read)) // in the queue of a paused machine it has not arrived
		if reason := m.Receive(now.Add(-age), raw-age, p.Packet); reason != member.Accepted {
			m.drops[reason]++
		}
		w.checkAttention(m)
	}
	m.waiting, m.read = m.waiting[:0], now
	w.probe(m)
	if m.Urgent() || !now.Before(m.Next()) {
		w.send(m, m.Tick(now, raw))
	}
	w.checkAttention(m)
	if m.Changed() {
		members, nodes, vips := m.Members()
		m.members = members
		for n := range nodes {
			m.nodes[n] = struct{}{}
		}
		for v := range vips {
			m.vips[v] = struct{}{}
		}
	}
	m.nextTick = w.now.Add(time.Duration(float64(m.Next().Sub(now)) / (1 + m.slew + m.skew)))
	if m.Urgent() {
		m.nextTick = w.now
	}
	if m.late != nil {
		m.nextTick = m.nextTick.Add(m.late())
	}
	if !m.nextTick.After(w.now) && !m.Urgent() {
		m.nextTick = w.now.Add(time.Microsecond)
	}
	if w.watch != nil {
		w.watch(m)
	}
}

// probe probes, once a second, the kernels of away nodes, and delivers the results of the previous probes.
func (w *world) probe(m *machine) {
	away := m.Away()
	if len(away) == 0 || w.now.Sub(m.probed) < time.Second {
		return
	}
	m.probed = w.now
	m.Answered(m.answered, m.silent)
	m.answered, m.silent = nil, nil
	for _, n := range away {
		if m.unplugged && n.Iface == "eth0" {
			continue
		}
		to := w.byAddr[n.Addr]
		dropped := w.drop != nil && (w.drop(m, to, n.Iface) || w.drop(to, m, n.Iface))
		if to.dead || to.asleep || dropped || w.random.Float64() < 2*w.loss {
			m.silent = append(m.silent, n)
		} else {
			m.answered = append(m.answered, n)
		}
	}
}

func (w *world) send(from *machine, sends []member.Send) {
	for _, s := range sends {
		w.sent++
		w.hash.Write(s.Data)
		if s.To.IsValid() {
			w.unicast++
			to := w.byAddr[s.To]
			iface, source := "eth1", from.addr
			if to == nil {
				continue
			}
			switch s.To {
			case to.lan:
				iface, source = "eth0", from.lan
			case to.addr6:
				iface, source = w.iface6, from.addr6
			}
			if w.dropTo != nil && w.dropTo(s.To) {
				continue
			}
			w.carry(from, to, iface, source, s.Data, false)
			continue
		}
		source := from.lan
		if s.IPv6 || w.ipv4 && !from.ipv4 {
			source = from.addr6
		}
		for _, to := range w.nodes {
			if w.ipv4 && from.ipv4 && !s.IPv6 && !to.ipv4 {
				continue
			}
			if reached := s.Broadcast || !w.dropGroup && to != w.dropGroupAt; to != from && reached {
				w.carry(from, to, s.Iface, source, s.Data, true)
			}
		}
	}
}

func (w *world) carry(from, to *machine, iface string, source netip.Addr, data []byte, group bool) {
	if len(data) > member.MaxDatagram {
		w.t.Errorf("a datagram of %d bytes", len(data))
	}
	if from.off || to.off || w.random.Float64() < w.loss || w.drop != nil && w.drop(from, to, iface) {
		return
	}
	heap.Push(&w.queue, event{at: w.now.Add(w.delay()), order: w.sent, to: to,
		packet: member.Packet{Iface: iface, Source: source, OnLink: true, Group: group, Data: slices.Clone(data)}})
}

// receives reports whether a node counts others as alive on its LAN.
func (m *machine) receives(others ...*machine) bool {
	for _, o := range others {
		if _, on := m.members.Peers[o.name].On["eth0"]; o != m && !on {
			return false
		}
	}
	return true
}

func (m *machine) receivesNone(others ...*machine) bool {
	for _, o := range others {
		if o != m && m.receives(o) {
			return false
		}
	}
	return true
}

// settled reports whether all nodes receive one another and none observes.
func (w *world) settled() bool {
	for _, m := range w.nodes {
		if m.off {
			continue
		}
		if m.members.Peers == nil || m.members.Observer || len(m.members.Isolated) > 0 {
			return false
		}
		for _, o := range w.nodes {
			if o != m && !o.off && (!m.receives(o) || !m.members.Peers[o.name].Synced) {
				return false
			}
		}
	}
	return true
}

func (w *world) settle() { w.t.Helper(); w.must("settled", 5*time.Second, w.settled) }

// claims returns n held claims.
func claims(n int) view.LocalState {
	state := view.LocalState{Claims: map[string]view.Claim{}}
	for i := range n {
		state.Claims[fmt.Sprintf("vip-%d", i)] = view.Claim{State: view.Held, Generation: int64(i), Rank: uint16(i % 7)}
	}
	return state
}

func (w *world) publish(m *machine, state view.LocalState) {
	m.Publish(state)
	if m.nextTick.After(w.now) {
		m.nextTick = w.now
	}
}
