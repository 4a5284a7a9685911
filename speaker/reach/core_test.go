package reach_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/reach"
	"github.com/ironlb/ironlb/speaker/view"
)

// fixture is one node with its Core among other nodes, with a virtual clock.
type fixture struct {
	*reach.Core
	t       *testing.T
	now     time.Time
	random  *rand.Rand
	hosts   map[netip.Addr]*host
	answers []answer // in flight
	probes  int
	loss    float64 // of one direction
	delay   time.Duration
	watch   func(view.Reachability)
	unsent  bool // probes cannot be sent
}

// host is another node, or a gateway.
type host struct {
	name    string
	addr    netip.Addr
	speaker bool // its speaker is received
	kernel  bool // its kernel answers
	mute    []view.Witness
}

type answer struct {
	at time.Time
	q  reach.Probe
}

var gateway = netip.MustParseAddr("192.0.2.254")

func both(addr netip.Addr) []reach.Target {
	return []reach.Target{{Addr: addr, By: view.WitnessEcho}, {Addr: addr, By: view.WitnessNeighbor}}
}

// newFixture returns a fixture with other nodes, all up for some seconds, behind a gateway.
func newFixture(t *testing.T, others int) *fixture {
	f := &fixture{
		Core: reach.NewCore(), t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), hosts: map[netip.Addr]*host{},
		random: rand.New(rand.NewPCG(1, uint64(others))), delay: 200 * time.Microsecond,
	}
	nodes := map[string][]reach.Target{}
	for i := range others {
		h := &host{name: fmt.Sprintf("node%d", i+1), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}
		h.speaker, h.kernel = true, true
		f.hosts[h.addr] = h
		nodes[h.name] = both(h.addr)
	}
	f.hosts[gateway] = &host{name: "gateway", addr: gateway, kernel: true}
	f.SetNodes(f.now, nodes)
	f.SetGateways(f.now, both(gateway))
	f.receive()
	f.run(3 * time.Second)
	return f
}

func (f *fixture) node(i int) *host { return f.hosts[netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})] }

// receive updates the Core's set of received speakers.
func (f *fixture) receive() {
	received := map[string]struct{}{}
	for _, h := range f.hosts {
		if h.speaker {
			received[h.name] = struct{}{}
		}
	}
	f.SetReceived(f.now, received, false)
}

func (f *fixture) set(h *host, speaker, kernel bool) {
	h.speaker, h.kernel = speaker, kernel
	f.receive()
}

func (f *fixture) lost() bool { return f.random.Float64() < f.loss }

// run advances time.
func (f *fixture) run(d time.Duration) { f.until(d, func() bool { return false }) }

// until advances time until a condition holds, at most by most, and returns how long it took.
func (f *fixture) until(most time.Duration, holds func() bool) (took time.Duration) {
	f.t.Helper()
	began := f.now
	for !holds() {
		next := f.Next()
		if len(f.answers) > 0 && f.answers[0].at.Before(next) {
			next = f.answers[0].at
		}
		if next.Sub(began) > most {
			f.now = began.Add(most)
			return most
		}
		if next.After(f.now) {
			f.now = next
		}
		f.tick()
	}
	return f.now.Sub(began)
}

// tick passes arrived answers to the Core, and sends its probes.
func (f *fixture) tick() {
	for len(f.answers) > 0 && !f.answers[0].at.After(f.now) {
		f.Answered(f.now, f.answers[0].q)
		f.answers = f.answers[1:]
	}
	for _, q := range f.Tick(f.now) {
		f.probes++
		if f.unsent {
			f.Unsent(q)
			continue
		}
		h := f.hosts[q.Addr]
		if h == nil || !h.kernel || slices.Contains(h.mute, q.By) || f.lost() || f.lost() {
			continue
		}
		f.answers = append(f.answers, answer{f.now.Add(f.delay), q})
	}
	if f.watch != nil {
		f.watch(f.State())
	}
}

func (f *fixture) unreachable(hosts ...*host) bool {
	want := map[string]struct{}{}
	for _, h := range hosts {
		want[h.name] = struct{}{}
	}
	have := map[string]struct{}{}
	for name := range f.State().Unreachable {
		have[name] = struct{}{}
	}
	return maps.Equal(have, want)
}

// within checks that exactly these nodes become unreachable, after at least least and at most most.
func (f *fixture) within(least, most time.Duration, hosts ...*host) {
	f.t.Helper()
	took := f.until(most, func() bool { return f.unreachable(hosts...) })
	if !f.unreachable(hosts...) || took < least {
		f.t.Fatalf("after %v: %+v", took, f.State())
	}
}

// stays checks that this holds for a time.
func (f *fixture) stays(d time.Duration, hosts ...*host) {
	f.t.Helper()
	took := f.until(d, func() bool { return !f.unreachable(hosts...) })
	if !f.unreachable(hosts...) {
		f.t.Fatalf("after %v: %+v", took, f.State())
	}
}

// decidedWithin is the part of the promised 150 ms after the dead time that a tick of speaker/member and late timers
// leave.
const decidedWithin = 120 * time.Millisecond

func TestNodeDies(t *testing.T) {
	f := newFixture(t, 4)
	f.stays(time.Minute)
	f.set(f.node(2), false, false)
	f.within(100*time.Millisecond, decidedWithin, f.node(2))
	u := f.State().Unreachable["node2"]
	if !slices.Equal(u.Silent, []view.Witness{view.WitnessEcho, view.WitnessNeighbor}) || u.Gateway.IsValid() || !u.Since.Equal(f.now) {
		t.Errorf("%+v", u)
	}
	f.stays(time.Hour, f.node(2))
	f.set(f.node(2), true, true)
	f.within(0, 0)
}

// The answer that ends a cut may have been delayed by it. It makes no witness slow: the next death is detected as fast
// as any.
func TestDiesAgain(t *testing.T) {
	for name, back := range map[string]func(f *fixture){
		"the kernel first": func(f *fixture) {
			f.delay = 900 * time.Millisecond
			f.node(2).kernel = true
			f.within(time.Millisecond, 2*time.Second)
			f.delay = 200 * time.Microsecond
			f.set(f.node(2), true, true)
		},
		"the speaker first": func(f *fixture) {
			f.delay = 400 * time.Millisecond
			f.node(2).kernel = true
			f.until(time.Second, func() bool { return len(f.answers) > 0 })
			f.delay = 200 * time.Microsecond
			f.set(f.node(2), true, true)
			f.within(0, time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 4)
			f.set(f.node(2), false, false)
			f.within(100*time.Millisecond, decidedWithin, f.node(2))
			f.stays(time.Minute, f.node(2))
			back(f)
			f.stays(2 * time.Second)
			f.set(f.node(2), false, false)
			f.within(100*time.Millisecond, decidedWithin, f.node(2))
			f.set(f.node(2), true, true)
			f.within(0, time.Millisecond)
			f.stays(2 * time.Second)
			probes := f.probes
			f.stays(time.Minute)
			if n := f.probes - probes; n > 4*2*3 { // each witness each 30 s
				t.Errorf("%d probes in a minute", n)
			}
			f.set(f.node(2), false, false)
			f.within(100*time.Millisecond, decidedWithin, f.node(2))
		})
	}
}

// A witness that becomes slow is given more time, and is not probed more often.
func TestSlowAnswers(t *testing.T) {
	f := newFixture(t, 4)
	f.delay = 50 * time.Millisecond
	f.stays(2 * time.Minute)
	probes := f.probes
	f.stays(time.Minute)
	if n := f.probes - probes; n > 4*2*3 {
		t.Errorf("%d probes in a minute", n)
	}
	f.set(f.node(2), false, true)
	f.stays(time.Minute)
}

// A silent speaker is not a dead node.
func TestSpeakerDies(t *testing.T) {
	f := newFixture(t, 4)
	f.loss = 0.05
	f.set(f.node(2), false, true)
	f.stays(2 * time.Minute)
	f.set(f.node(2), false, false) // now the node dies as well
	f.within(400*time.Millisecond, 700*time.Millisecond, f.node(2))
	f.node(2).kernel = true // and returns without a speaker
	f.within(0, time.Second)
	f.stays(10 * time.Minute)
}

// A node whose kernel does not answer is no problem while its speaker runs; without its speaker, its state is unknown.
func TestNeverAnswered(t *testing.T) {
	f := newFixture(t, 4)
	f.node(2).mute = []view.Witness{view.WitnessEcho, view.WitnessNeighbor}
	f.run(2 * time.Minute) // earlier answers do not count any more
	if _, is := f.State().Unwitnessed["node2"]; !is || len(f.State().Unwitnessed) != 1 {
		t.Fatalf("%+v", f.State())
	}
	f.set(f.node(2), false, false)
	f.stays(time.Hour)
	if _, is := f.State().Unwitnessed["node2"]; !is {
		t.Errorf("%+v", f.State())
	}
	f.set(f.node(2), true, true)
	f.node(2).mute = nil
	f.run(2 * time.Minute)
	if len(f.State().Unwitnessed) > 0 {
		t.Errorf("it answers: %+v", f.State())
	}
}

// One witness is enough if the other never answered, for example because a host drops ICMP.
func TestOneWitness(t *testing.T) {
	for _, mute := range []view.Witness{view.WitnessEcho, view.WitnessNeighbor} {
		f := newFixture(t, 4)
		f.node(2).mute = []view.Witness{mute}
		f.run(2 * time.Minute)
		if len(f.State().Unwitnessed) > 0 {
			t.Errorf("%v: %+v", mute, f.State())
		}
		f.set(f.node(2), false, true)
		f.stays(time.Minute)
		f.set(f.node(2), true, true)
		f.run(time.Second)
		f.set(f.node(2), false, false)
		f.within(0, decidedWithin, f.node(2))
	}
}

func TestTwoNodes(t *testing.T) {
	f := newFixture(t, 1)
	f.set(f.node(1), false, false)
	f.within(0, decidedWithin, f.node(1))
	if got := f.State().Unreachable["node1"].Gateway; got != gateway {
		t.Errorf("the gateway that answered: %v", got)
	}
}

func TestCutOff(t *testing.T) {
	for _, others := range []int{1, 2, 5} {
		f := newFixture(t, others)
		var all []*host
		for _, h := range f.hosts {
			h.kernel = false
			if h.name != "gateway" {
				h.speaker = false
				all = append(all, h)
			}
		}
		f.receive()
		f.stays(10 * time.Minute)
		if !f.State().CutOff {
			t.Errorf("%+v", f.State())
		}
		f.hosts[gateway].kernel = true // its own link is back, but the others are still dead
		f.within(0, 2*time.Second, all...)
		if f.State().CutOff {
			t.Errorf("%+v", f.State())
		}
	}
}

// If the path to the gateway recovers before the path to the others, these are probed again before they count as
// unreachable.
func TestCutOffEnds(t *testing.T) {
	for _, others := range []int{1, 5} {
		for _, after := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
			f := newFixture(t, others)
			connect := func(h *host, speaker, kernel bool) { f.set(h, speaker && h.name != "gateway", kernel) }
			for _, h := range f.hosts {
				connect(h, false, false)
			}
			f.stays(time.Minute)
			connect(f.hosts[gateway], false, true)
			f.stays(after)
			for _, h := range f.hosts {
				connect(h, false, true)
			}
			f.stays(100 * time.Millisecond)
			for _, h := range f.hosts {
				connect(h, true, true)
			}
			f.stays(time.Minute)
			if f.State().CutOff {
				t.Errorf("%d others, %v: %+v", others, after, f.State())
			}
		}
	}
}

// Nodes that were lost at once and return one after the other never count as unreachable.
func TestReturnInSequence(t *testing.T) {
	f := newFixture(t, 6)
	f.hosts[gateway].kernel = false
	for i := range 5 {
		f.node(i+1).speaker, f.node(i+1).kernel = false, false
	}
	f.receive()
	f.stays(5 * time.Second)
	if !f.State().CutOff {
		t.Errorf("%+v", f.State())
	}
	for i := range 5 {
		f.set(f.node(i+1), true, true)
		f.stays(20 * time.Millisecond)
	}
	f.stays(time.Minute)
	if f.State().CutOff {
		t.Errorf("%+v", f.State())
	}
}

// A gateway's answer from before this node was cut off does not count.
func TestCutOffAgain(t *testing.T) {
	for _, others := range []int{1, 5} {
		f := newFixture(t, others)
		connect := func(kernel bool) {
			for _, h := range f.hosts {
				h.speaker, h.kernel = false, kernel
			}
			f.receive()
		}
		for _, up := range []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, 30 * time.Second} {
			connect(false)
			f.stays(10 * time.Second)
			connect(true)
			f.stays(up)
		}
		connect(false)
		f.stays(time.Minute)
		if !f.State().CutOff {
			t.Errorf("%d others: %+v", others, f.State())
		}
	}
}

// While others are still reached, more than half of the nodes lost at once cast doubt on this node's own link, and
// fewer do not.
func TestManyVanish(t *testing.T) {
	for _, test := range []struct {
		vanish  int
		gateway bool
		want    bool
	}{{3, false, true}, {4, false, false}, {4, true, true}} {
		f := newFixture(t, 6)
		f.hosts[gateway].kernel = test.gateway
		var gone []*host
		for i := range test.vanish {
			h := f.node(i + 1)
			h.speaker, h.kernel = false, false
			gone = append(gone, h)
		}
		f.receive()
		for range 60 {
			f.run(time.Second)
			if test.want != f.unreachable(gone...) || test.want == f.State().CutOff {
				t.Fatalf("%+v: %+v", test, f.State())
			}
		}
	}
}

// While this node's own link is cut, heartbeats of the others expire one after the other: those that have not expired
// yet are no proof that this node is not cut off.
func TestCutOffInSequence(t *testing.T) {
	for _, others := range []int{2, 3, 5, 20} {
		for _, gap := range []time.Duration{20, 100, 150, 300, 1000} {
			f := newFixture(t, others)
			for _, h := range f.hosts {
				h.kernel = false
			}
			for i := range others {
				f.node(i + 1).speaker = false
				f.receive()
				f.stays(gap * time.Millisecond)
			}
			f.stays(time.Minute)
			if !f.State().CutOff {
				t.Errorf("%d others, %v: %+v", others, gap, f.State())
			}
		}
	}
}

// A gateway's answer from before the kernel of the only other node became silent is no proof either.
func TestCutOffWithoutSpeaker(t *testing.T) {
	for _, after := range []time.Duration{0, 20 * time.Second, time.Hour} {
		f := newFixture(t, 1)
		f.set(f.node(1), false, true)
		f.stays(time.Second + after)
		f.node(1).kernel, f.hosts[gateway].kernel = false, false
		f.stays(time.Minute)
		if !f.State().CutOff {
			t.Errorf("after %v: %+v", after, f.State())
		}
		f.hosts[gateway].kernel = true
		f.within(0, 10*time.Second, f.node(1))
	}
}

// A node with another address has unknown state.
func TestAddressChanges(t *testing.T) {
	f := newFixture(t, 4)
	f.set(f.node(2), false, false)
	f.within(0, decidedWithin, f.node(2))
	nodes := map[string][]reach.Target{"node2": both(netip.MustParseAddr("192.0.2.100"))}
	for _, i := range []int{1, 3, 4} {
		nodes[f.node(i).name] = both(f.node(i).addr)
	}
	f.SetNodes(f.now, nodes)
	f.within(0, time.Second)
	f.stays(time.Hour)
}

// A probe that could not be sent is no silence.
func TestUnsent(t *testing.T) {
	f := newFixture(t, 4)
	f.unsent = true
	f.set(f.node(2), false, false)
	f.stays(time.Minute)
	f.unsent = false
	f.within(0, time.Second, f.node(2))
}

// Nodes lost one after the other cast no doubt on this node's link.
func TestVanishInSequence(t *testing.T) {
	f := newFixture(t, 6)
	f.hosts[gateway].kernel = false
	var gone []*host
	for i := range 5 {
		f.set(f.node(i+1), false, false)
		gone = append(gone, f.node(i+1))
		f.within(0, decidedWithin, gone...)
		f.stays(11*time.Second, gone...)
	}
}

// All speakers stop at once, as in a failed upgrade: no node counts as unreachable, and this one does not count as cut
// off.
func TestAllSpeakersStop(t *testing.T) {
	f := newFixture(t, 9)
	f.hosts[gateway].kernel = false
	for i := range 9 {
		f.node(i + 1).speaker = false
	}
	f.receive()
	f.loss = 0.05
	f.stays(10 * time.Minute)
	if f.State().CutOff {
		t.Errorf("%+v", f.State())
	}
}

// An observer changes nothing: it neither adds an unreachable node nor removes one.
func TestObserver(t *testing.T) {
	f := newFixture(t, 4)
	f.set(f.node(1), false, false)
	f.within(0, decidedWithin, f.node(1))
	f.node(2).speaker, f.node(2).kernel = false, false
	received := map[string]struct{}{"node3": {}, "node4": {}}
	f.SetReceived(f.now, received, true)
	f.stays(time.Minute, f.node(1))
	f.SetReceived(f.now, received, false)
	f.within(0, decidedWithin, f.node(1), f.node(2))
}

// A node that was never received does not count as unreachable.
func TestNeverReceived(t *testing.T) {
	f := newFixture(t, 4)
	dead := netip.MustParseAddr("192.0.2.100")
	nodes := map[string][]reach.Target{"node9": both(dead)}
	for i := range 4 {
		nodes[f.node(i+1).name] = both(f.node(i + 1).addr)
	}
	f.SetNodes(f.now, nodes)
	f.stays(time.Hour)
	if len(f.State().Unwitnessed) > 0 {
		t.Errorf("%+v", f.State())
	}
	delete(nodes, "node9")
	f.set(f.node(1), false, false)
	f.within(0, decidedWithin, f.node(1))
	delete(nodes, "node1")
	f.SetNodes(f.now, nodes) // the Node is deleted
	f.within(0, time.Second)
}

// A node may become unreachable and return any number of times.
func TestFlapping(t *testing.T) {
	f := newFixture(t, 4)
	for range 20 {
		f.set(f.node(2), false, false)
		f.within(0, decidedWithin, f.node(2))
		f.run(time.Second)
		f.set(f.node(2), true, true)
		f.within(0, 0)
		f.run(time.Second)
	}
}

// A process that stalls right after its probes has lost the answers, and probes again before it evaluates.
func TestStall(t *testing.T) {
	f := newFixture(t, 4)
	f.set(f.node(2), false, true)
	for range 100 {
		f.tick() // sends probes
		f.answers = nil
		f.now = f.now.Add(3 * time.Second)
	}
	f.stays(10 * time.Second)
	f.set(f.node(2), true, true)
	f.run(time.Second)
	f.set(f.node(2), false, false)
	f.tick()
	f.now = f.now.Add(3 * time.Second)
	f.within(100*time.Millisecond, time.Second, f.node(2))
}

// The same holds for new input right after the stall.
func TestStallWithNews(t *testing.T) {
	for name, news := range map[string]func(*fixture){
		"received": func(f *fixture) { f.set(f.node(3), false, true) },
		"gateways": func(f *fixture) { f.SetGateways(f.now, both(gateway)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 4)
			f.set(f.node(2), false, false)
			f.run(55 * time.Millisecond)
			f.node(2).kernel = true
			f.now = f.now.Add(3 * time.Second)
			f.answers = nil
			news(f)
			f.stays(10 * time.Second)
		})
	}
}

// A late answer counts: on a slow path, more time is given.
func TestSlowNetwork(t *testing.T) {
	f := newFixture(t, 4)
	f.delay = 150 * time.Millisecond
	f.run(2 * time.Minute)
	f.set(f.node(2), false, true)
	f.stays(5 * time.Minute)
	f.set(f.node(2), true, true)
	f.run(time.Minute)
	f.set(f.node(2), false, false)
	f.within(0, time.Second, f.node(2))
}

// The same holds for a gateway's answers.
func TestSlowGateway(t *testing.T) {
	f := newFixture(t, 1)
	f.delay = 300 * time.Millisecond
	f.run(2 * time.Minute)
	f.set(f.node(1), false, false)
	f.within(0, 2*time.Second, f.node(1))
	f.stays(time.Minute, f.node(1))
}

// TestLoss: with no speaker received and 5 % loss in each direction, no node counts as unreachable.
func TestLoss(t *testing.T) {
	f := newFixture(t, 100)
	f.loss = 0.05
	for range 4 {
		for i := range 100 {
			f.node(i + 1).speaker = !f.node(i + 1).speaker
		}
		f.receive()
		f.stays(3 * time.Minute)
	}
}

// TestCost counts probes while nothing happens, and for a node that is dead for a long time.
func TestCost(t *testing.T) {
	f := newFixture(t, 100)
	f.run(time.Minute)
	ticks := 0
	f.watch = func(view.Reachability) { ticks++ }
	f.probes = 0
	f.run(5 * time.Minute)
	if f.probes != 100*2*10 || ticks > 3*300 {
		t.Errorf("%d probes and %d ticks in 5 minutes", f.probes, ticks)
	}
	f.set(f.node(1), false, false)
	f.run(10 * time.Minute)
	f.probes = 0
	f.run(time.Minute)
	if most := 99*2*2 + 2*120 + 2; f.probes > most {
		t.Errorf("%d probes in a minute with a dead node, want at most %d", f.probes, most)
	}
	one := newFixture(t, 1)
	one.set(one.node(1), false, false)
	one.run(10 * time.Minute)
	one.probes = 0
	one.run(time.Minute)
	if one.probes > 2*120+2 {
		t.Errorf("%d probes in a minute where the only other node is dead", one.probes)
	}
}

// TestRandom: with any sequence of events, while the gateway answers, no node is unreachable that is received or has
// answered for a while, and no node is reachable for long that is neither.
func TestRandom(t *testing.T) {
	for seed := range uint64(50) {
		f := newFixture(t, 2+int(seed%7))
		f.random = rand.New(rand.NewPCG(seed, 7))
		f.loss = 0.02
		since := map[string]time.Time{}
		for range 60 {
			for _, h := range f.hosts {
				if h.name == "gateway" || f.random.IntN(4) > 0 {
					continue
				}
				h.speaker, h.kernel = f.random.IntN(3) > 0, true
				if !h.speaker {
					h.kernel = f.random.IntN(2) > 0
				}
				since[h.name] = f.now
			}
			f.receive()
			f.run(time.Duration(f.random.IntN(int(20 * time.Second))))
			for _, h := range f.hosts {
				u, is := f.State().Unreachable[h.name]
				switch lasted := f.now.Sub(since[h.name]); {
				case h.name == "gateway":
				case is && h.kernel && lasted > 2*time.Second, is && h.speaker:
					t.Fatalf("seed %d: %+v is unreachable: %+v", seed, h, u)
				case !is && !h.kernel && lasted > 8*time.Second: // the speaker may have been silent for minutes
					t.Fatalf("seed %d: %+v is reachable: %+v", seed, h, f.State())
				}
			}
		}
	}
}

// TestCutOffUntilAnswered: once hosts do not answer, only the answer to a later probe ends that, not a stall.
func TestCutOffUntilAnswered(t *testing.T) {
	f := newFixture(t, 2)
	router := f.hosts[gateway]
	silent := map[string]time.Time{"eth0": f.now}
	listed := both(gateway)
	f.SetSilent(f.now, silent, func(string) []reach.Target { return listed })
	answers := func() view.Answers { return f.State().Silent["eth0"] }
	f.run(time.Second)
	if a := answers(); a.None || a.First.IsZero() {
		t.Fatalf("the router answers: %+v", a)
	}
	router.kernel = false
	f.run(3 * time.Second)
	if !answers().None {
		t.Fatalf("the router does not answer: %+v", answers())
	}
	f.now = f.now.Add(1500 * time.Millisecond)
	f.watch = func(s view.Reachability) {
		if !s.Silent["eth0"].None {
			t.Fatalf("the router answers nothing: %+v", s.Silent)
		}
	}
	f.run(3 * time.Second)
	f.watch = nil
	f.SetSilent(f.now, silent, func(string) []reach.Target { t.Error("listed again"); return nil })
	f.run(time.Second)
	if !answers().None {
		t.Error("the same silence was taken for another")
	}
	other := netip.MustParseAddr("192.0.2.200")
	f.hosts[other] = &host{name: "other", addr: other, kernel: true}
	listed = both(other)
	f.run(15 * time.Second)
	if answers().None {
		t.Error("another host answers")
	}
	f.hosts[other].kernel = false
	f.run(25 * time.Second)
	if !answers().None {
		t.Error("that host does not answer either")
	}
	listed, router.kernel = both(gateway), true
	f.run(15 * time.Second)
	if answers().None {
		t.Error("the first host answers, and the other has left")
	}
	listed, router.kernel = nil, false
	f.run(15 * time.Second)
	if !answers().None {
		t.Error("no host answers, and none is known")
	}
	router.kernel = true
	f.run(3 * time.Second)
	if answers().None {
		t.Error("the router answers again")
	}
	f.SetSilent(f.now, map[string]time.Time{"eth0": f.now}, func(string) []reach.Target { return nil })
	f.tick()
	if a := answers(); a.None || !a.First.Equal(f.now) {
		t.Errorf("another silence, and no host to ask: %+v", a)
	}
}
