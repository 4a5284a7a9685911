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

// world is one node with its Core among other nodes, with a virtual clock.
type world struct {
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

// newWorld returns a world with other nodes, all up for some seconds, behind a gateway.
func newWorld(t *testing.T, others int) *world {
	w := startWorld(t, others, nil)
	w.receive()
	w.run(3 * time.Second)
	return w
}

// startWorld returns a world in which this node has just started and received no other; some nodes were unreachable for
// the previous process.
func startWorld(t *testing.T, others int, unreachable map[string][]reach.Target) *world {
	w := &world{
		Core: reach.NewCore(), t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), hosts: map[netip.Addr]*host{},
		random: rand.New(rand.NewPCG(1, uint64(others))), delay: 200 * time.Microsecond,
	}
	w.Restore(w.now, unreachable)
	nodes := map[string][]reach.Target{}
	for i := range others {
		h := &host{name: fmt.Sprintf("node%d", i+1), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}
		h.speaker, h.kernel = true, true
		w.hosts[h.addr] = h
		nodes[h.name] = both(h.addr)
	}
	w.hosts[gateway] = &host{name: "gateway", addr: gateway, kernel: true}
	w.SetNodes(w.now, nodes)
	w.SetGateways(w.now, both(gateway))
	return w
}

func (w *world) node(i int) *host { return w.hosts[netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})] }

// receive updates the Core's set of received speakers.
func (w *world) receive() {
	received := map[string]struct{}{}
	for _, h := range w.hosts {
		if h.speaker {
			received[h.name] = struct{}{}
		}
	}
	w.SetReceived(w.now, received, false)
}

func (w *world) set(h *host, speaker, kernel bool) {
	h.speaker, h.kernel = speaker, kernel
	w.receive()
}

func (w *world) lost() bool { return w.random.Float64() < w.loss }

// run advances time.
func (w *world) run(d time.Duration) { w.until(d, func() bool { return false }) }

// until advances time until a condition holds, at most by most, and returns how long it took.
func (w *world) until(most time.Duration, holds func() bool) (took time.Duration) {
	w.t.Helper()
	began := w.now
	for !holds() {
		next := w.Next()
		if len(w.answers) > 0 && w.answers[0].at.Before(next) {
			next = w.answers[0].at
		}
		if next.Sub(began) > most {
			w.now = began.Add(most)
			return most
		}
		if next.After(w.now) {
			w.now = next
		}
		w.tick()
	}
	return w.now.Sub(began)
}

// tick passes arrived answers to the Core, and sends its probes.
func (w *world) tick() {
	for len(w.answers) > 0 && !w.answers[0].at.After(w.now) {
		w.Answered(w.now, w.answers[0].q)
		w.answers = w.answers[1:]
	}
	for _, q := range w.Tick(w.now) {
		w.probes++
		if w.unsent {
			w.Unsent(q)
			continue
		}
		h := w.hosts[q.Addr]
		if h == nil || !h.kernel || slices.Contains(h.mute, q.By) || w.lost() || w.lost() {
			continue
		}
		w.answers = append(w.answers, answer{w.now.Add(w.delay), q})
	}
	if w.watch != nil {
		w.watch(w.State())
	}
}

func (w *world) unreachable(hosts ...*host) bool {
	want := map[string]struct{}{}
	for _, h := range hosts {
		want[h.name] = struct{}{}
	}
	have := map[string]struct{}{}
	for name := range w.State().Unreachable {
		have[name] = struct{}{}
	}
	return maps.Equal(have, want)
}

// within checks that exactly these nodes become unreachable, after at least least and at most most.
func (w *world) within(least, most time.Duration, hosts ...*host) {
	w.t.Helper()
	took := w.until(most, func() bool { return w.unreachable(hosts...) })
	if !w.unreachable(hosts...) || took < least {
		w.t.Fatalf("after %v: %+v", took, w.State())
	}
}

// stays checks that this holds for a time.
func (w *world) stays(d time.Duration, hosts ...*host) {
	w.t.Helper()
	took := w.until(d, func() bool { return !w.unreachable(hosts...) })
	if !w.unreachable(hosts...) {
		w.t.Fatalf("after %v: %+v", took, w.State())
	}
}

// decidedWithin is the part of the promised 150 ms after the dead time that a tick of speaker/member and late timers
// leave.
const decidedWithin = 120 * time.Millisecond

func TestNodeDies(t *testing.T) {
	w := newWorld(t, 4)
	w.stays(time.Minute)
	w.set(w.node(2), false, false)
	w.within(100*time.Millisecond, decidedWithin, w.node(2))
	u := w.State().Unreachable["node2"]
	if !slices.Equal(u.Silent, []view.Witness{view.WitnessEcho, view.WitnessNeighbor}) || u.Gateway.IsValid() || !u.Since.Equal(w.now) {
		t.Errorf("%+v", u)
	}
	w.stays(time.Hour, w.node(2))
	w.set(w.node(2), true, true)
	w.within(0, 0)
}

// The answer that ends a cut may have been delayed by it. It makes no witness slow: the next death is detected as fast
// as any.
func TestDiesAgain(t *testing.T) {
	for name, back := range map[string]func(w *world){
		"the kernel first": func(w *world) {
			w.delay = 900 * time.Millisecond
			w.node(2).kernel = true
			w.within(time.Millisecond, 2*time.Second)
			w.delay = 200 * time.Microsecond
			w.set(w.node(2), true, true)
		},
		"the speaker first": func(w *world) {
			w.delay = 400 * time.Millisecond
			w.node(2).kernel = true
			w.until(time.Second, func() bool { return len(w.answers) > 0 })
			w.delay = 200 * time.Microsecond
			w.set(w.node(2), true, true)
			w.within(0, time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.set(w.node(2), false, false)
			w.within(100*time.Millisecond, decidedWithin, w.node(2))
			w.stays(time.Minute, w.node(2))
			back(w)
			w.stays(2 * time.Second)
			w.set(w.node(2), false, false)
			w.within(100*time.Millisecond, decidedWithin, w.node(2))
			w.set(w.node(2), true, true)
			w.within(0, time.Millisecond)
			w.stays(2 * time.Second)
			probes := w.probes
			w.stays(time.Minute)
			if n := w.probes - probes; n > 4*2*3 { // each witness each 30 s
				t.Errorf("%d probes in a minute", n)
			}
			w.set(w.node(2), false, false)
			w.within(100*time.Millisecond, decidedWithin, w.node(2))
		})
	}
}

// A witness that becomes slow is given more time, and is not probed more often.
func TestSlowAnswers(t *testing.T) {
	w := newWorld(t, 4)
	w.delay = 50 * time.Millisecond
	w.stays(2 * time.Minute)
	probes := w.probes
	w.stays(time.Minute)
	if n := w.probes - probes; n > 4*2*3 {
		t.Errorf("%d probes in a minute", n)
	}
	w.set(w.node(2), false, true)
	w.stays(time.Minute)
}

// A silent speaker is not a dead node.
func TestSpeakerDies(t *testing.T) {
	w := newWorld(t, 4)
	w.loss = 0.05
	w.set(w.node(2), false, true)
	w.stays(2 * time.Minute)
	w.set(w.node(2), false, false) // now the node dies as well
	w.within(400*time.Millisecond, 700*time.Millisecond, w.node(2))
	w.node(2).kernel = true // and returns without a speaker
	w.within(0, time.Second)
	w.stays(10 * time.Minute)
}

// A node whose kernel does not answer is no problem while its speaker runs; without its speaker, its state is unknown.
func TestNeverAnswered(t *testing.T) {
	w := newWorld(t, 4)
	w.node(2).mute = []view.Witness{view.WitnessEcho, view.WitnessNeighbor}
	w.run(2 * time.Minute) // earlier answers do not count any more
	if _, is := w.State().Unwitnessed["node2"]; !is || len(w.State().Unwitnessed) != 1 {
		t.Fatalf("%+v", w.State())
	}
	w.set(w.node(2), false, false)
	w.stays(time.Hour)
	if _, is := w.State().Unwitnessed["node2"]; !is {
		t.Errorf("%+v", w.State())
	}
	w.set(w.node(2), true, true)
	w.node(2).mute = nil
	w.run(2 * time.Minute)
	if len(w.State().Unwitnessed) > 0 {
		t.Errorf("it answers: %+v", w.State())
	}
}

// One witness is enough if the other never answered, for example because a host drops ICMP.
func TestOneWitness(t *testing.T) {
	for _, mute := range []view.Witness{view.WitnessEcho, view.WitnessNeighbor} {
		w := newWorld(t, 4)
		w.node(2).mute = []view.Witness{mute}
		w.run(2 * time.Minute)
		if len(w.State().Unwitnessed) > 0 {
			t.Errorf("%v: %+v", mute, w.State())
		}
		w.set(w.node(2), false, true)
		w.stays(time.Minute)
		w.set(w.node(2), true, true)
		w.run(time.Second)
		w.set(w.node(2), false, false)
		w.within(0, decidedWithin, w.node(2))
	}
}

// A speaker that starts while a node is dead reads that from its predecessor's record.
func TestStartWithDeadNode(t *testing.T) {
	at := func(i byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, i}) }
	before := map[string][]reach.Target{
		"node2": both(at(2)), "node3": both(at(3))[:1], "gone": both(at(9)), "node1": both(at(99)), // its address has changed
	}
	w := startWorld(t, 4, before)
	if n := len(w.State().Unreachable); n != 4 || len(w.Record()) != 2 {
		t.Errorf("before the first tick: %+v, recorded %v", w.State(), w.Record())
	}
	w.node(2).speaker, w.node(2).kernel = false, false
	w.node(3).speaker, w.node(3).kernel = false, false
	began := w.now
	w.tick()
	w.stays(time.Second, w.node(2), w.node(3)) // no other node is received yet
	w.receive()
	w.stays(time.Hour, w.node(2), w.node(3))
	u := w.State().Unreachable["node2"]
	if !u.Since.Equal(began) || w.State().CutOff || !slices.Equal(u.Silent, []view.Witness{view.WitnessEcho, view.WitnessNeighbor}) {
		t.Errorf("%+v", w.State())
	}
	w.set(w.node(4), false, false) // another one dies
	w.within(0, decidedWithin, w.node(2), w.node(3), w.node(4))
	if got := w.Record(); len(got) != 3 || !slices.Equal(got["node3"], before["node3"]) || !slices.Equal(got["node4"], both(at(4))) {
		t.Errorf("recorded: %v", got)
	}
	w.set(w.node(2), true, false)
	w.within(0, 0, w.node(3), w.node(4))
	w.node(3).kernel = true // it runs without a speaker
	w.within(0, time.Second, w.node(4))
	w.stays(time.Hour, w.node(4))

	w = startWorld(t, 4, before) // both returned meanwhile
	w.tick()
	w.within(0, 10*time.Millisecond)
	w.receive()
	w.stays(time.Hour)

	w = startWorld(t, 4, nil)
	w.Core = reach.NewCore() // both are received before the nodes are set
	w.Restore(w.now, before)
	w.SetReceived(w.now, map[string]struct{}{"node2": {}, "node3": {}}, true)
	w.Tick(w.now)
	if n := len(w.State().Unreachable); n != 2 || len(w.Record()) != 2 {
		t.Errorf("two are received: %+v, recorded %v", w.State(), w.Record())
	}
}

func TestTwoNodes(t *testing.T) {
	w := newWorld(t, 1)
	w.set(w.node(1), false, false)
	w.within(0, decidedWithin, w.node(1))
	if got := w.State().Unreachable["node1"].Gateway; got != gateway {
		t.Errorf("the gateway that answered: %v", got)
	}
}

func TestCutOff(t *testing.T) {
	for _, others := range []int{1, 2, 5} {
		w := newWorld(t, others)
		var all []*host
		for _, h := range w.hosts {
			h.kernel = false
			if h.name != "gateway" {
				h.speaker = false
				all = append(all, h)
			}
		}
		w.receive()
		w.stays(10 * time.Minute)
		if !w.State().CutOff {
			t.Errorf("%+v", w.State())
		}
		w.hosts[gateway].kernel = true // its own link is back, but the others are still dead
		w.within(0, 2*time.Second, all...)
		if w.State().CutOff {
			t.Errorf("%+v", w.State())
		}
	}
}

// If the path to the gateway recovers before the path to the others, these are probed again before they count as
// unreachable.
func TestCutOffEnds(t *testing.T) {
	for _, others := range []int{1, 5} {
		for _, after := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
			w := newWorld(t, others)
			connect := func(h *host, speaker, kernel bool) { w.set(h, speaker && h.name != "gateway", kernel) }
			for _, h := range w.hosts {
				connect(h, false, false)
			}
			w.stays(time.Minute)
			connect(w.hosts[gateway], false, true)
			w.stays(after)
			for _, h := range w.hosts {
				connect(h, false, true)
			}
			w.stays(100 * time.Millisecond)
			for _, h := range w.hosts {
				connect(h, true, true)
			}
			w.stays(time.Minute)
			if w.State().CutOff {
				t.Errorf("%d others, %v: %+v", others, after, w.State())
			}
		}
	}
}

// Nodes that were lost at once and return one after the other never count as unreachable.
func TestReturnInSequence(t *testing.T) {
	w := newWorld(t, 6)
	w.hosts[gateway].kernel = false
	for i := range 5 {
		w.node(i+1).speaker, w.node(i+1).kernel = false, false
	}
	w.receive()
	w.stays(5 * time.Second)
	if !w.State().CutOff {
		t.Errorf("%+v", w.State())
	}
	for i := range 5 {
		w.set(w.node(i+1), true, true)
		w.stays(20 * time.Millisecond)
	}
	w.stays(time.Minute)
	if w.State().CutOff {
		t.Errorf("%+v", w.State())
	}
}

// A gateway's answer from before this node was cut off does not count.
func TestCutOffAgain(t *testing.T) {
	for _, others := range []int{1, 5} {
		w := newWorld(t, others)
		connect := func(kernel bool) {
			for _, h := range w.hosts {
				h.speaker, h.kernel = false, kernel
			}
			w.receive()
		}
		for _, up := range []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, 30 * time.Second} {
			connect(false)
			w.stays(10 * time.Second)
			connect(true)
			w.stays(up)
		}
		connect(false)
		w.stays(time.Minute)
		if !w.State().CutOff {
			t.Errorf("%d others: %+v", others, w.State())
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
		w := newWorld(t, 6)
		w.hosts[gateway].kernel = test.gateway
		var gone []*host
		for i := range test.vanish {
			h := w.node(i + 1)
			h.speaker, h.kernel = false, false
			gone = append(gone, h)
		}
		w.receive()
		for range 60 {
			w.run(time.Second)
			if test.want != w.unreachable(gone...) || test.want == w.State().CutOff {
				t.Fatalf("%+v: %+v", test, w.State())
			}
		}
	}
}

// While this node's own link is cut, heartbeats of the others expire one after the other: those that have not expired
// yet are no proof that this node is not cut off.
func TestCutOffInSequence(t *testing.T) {
	for _, others := range []int{2, 3, 5, 20} {
		for _, gap := range []time.Duration{20, 100, 150, 300, 1000} {
			w := newWorld(t, others)
			for _, h := range w.hosts {
				h.kernel = false
			}
			for i := range others {
				w.node(i + 1).speaker = false
				w.receive()
				w.stays(gap * time.Millisecond)
			}
			w.stays(time.Minute)
			if !w.State().CutOff {
				t.Errorf("%d others, %v: %+v", others, gap, w.State())
			}
		}
	}
}

// A gateway's answer from before the kernel of the only other node became silent is no proof either.
func TestCutOffWithoutSpeaker(t *testing.T) {
	for _, after := range []time.Duration{0, 20 * time.Second, time.Hour} {
		w := newWorld(t, 1)
		w.set(w.node(1), false, true)
		w.stays(time.Second + after)
		w.node(1).kernel, w.hosts[gateway].kernel = false, false
		w.stays(time.Minute)
		if !w.State().CutOff {
			t.Errorf("after %v: %+v", after, w.State())
		}
		w.hosts[gateway].kernel = true
		w.within(0, 10*time.Second, w.node(1))
	}
}

// A node with another address has unknown state.
func TestAddressChanges(t *testing.T) {
	w := newWorld(t, 4)
	w.set(w.node(2), false, false)
	w.within(0, decidedWithin, w.node(2))
	nodes := map[string][]reach.Target{"node2": both(netip.MustParseAddr("192.0.2.100"))}
	for _, i := range []int{1, 3, 4} {
		nodes[w.node(i).name] = both(w.node(i).addr)
	}
	w.SetNodes(w.now, nodes)
	w.within(0, time.Second)
	w.stays(time.Hour)
}

// A probe that could not be sent is no silence.
func TestUnsent(t *testing.T) {
	w := newWorld(t, 4)
	w.unsent = true
	w.set(w.node(2), false, false)
	w.stays(time.Minute)
	w.unsent = false
	w.within(0, time.Second, w.node(2))
}

// Nodes lost one after the other cast no doubt on this node's link.
func TestVanishInSequence(t *testing.T) {
	w := newWorld(t, 6)
	w.hosts[gateway].kernel = false
	var gone []*host
	for i := range 5 {
		w.set(w.node(i+1), false, false)
		gone = append(gone, w.node(i+1))
		w.within(0, decidedWithin, gone...)
		w.stays(11*time.Second, gone...)
	}
}

// All speakers stop at once, as in a failed upgrade: no node counts as unreachable, and this one does not count as cut
// off.
func TestAllSpeakersStop(t *testing.T) {
	w := newWorld(t, 9)
	w.hosts[gateway].kernel = false
	for i := range 9 {
		w.node(i + 1).speaker = false
	}
	w.receive()
	w.loss = 0.05
	w.stays(10 * time.Minute)
	if w.State().CutOff {
		t.Errorf("%+v", w.State())
	}
}

// An observer changes nothing: it neither adds an unreachable node nor removes one.
func TestObserver(t *testing.T) {
	w := newWorld(t, 4)
	w.set(w.node(1), false, false)
	w.within(0, decidedWithin, w.node(1))
	w.node(2).speaker, w.node(2).kernel = false, false
	received := map[string]struct{}{"node3": {}, "node4": {}}
	w.SetReceived(w.now, received, true)
	w.stays(time.Minute, w.node(1))
	w.SetReceived(w.now, received, false)
	w.within(0, decidedWithin, w.node(1), w.node(2))
}

// A node that was never received does not count as unreachable.
func TestNeverReceived(t *testing.T) {
	w := newWorld(t, 4)
	dead := netip.MustParseAddr("192.0.2.100")
	nodes := map[string][]reach.Target{"node9": both(dead)}
	for i := range 4 {
		nodes[w.node(i+1).name] = both(w.node(i + 1).addr)
	}
	w.SetNodes(w.now, nodes)
	w.stays(time.Hour)
	if len(w.State().Unwitnessed) > 0 {
		t.Errorf("%+v", w.State())
	}
	delete(nodes, "node9")
	w.set(w.node(1), false, false)
	w.within(0, decidedWithin, w.node(1))
	delete(nodes, "node1")
	w.SetNodes(w.now, nodes) // the Node is deleted
	w.within(0, time.Second)
}

func TestFlapping(t *testing.T) {
	w := newWorld(t, 4)
	for i := range 5 {
		w.set(w.node(2), false, false)
		w.within(0, decidedWithin, w.node(2))
		w.run(time.Second)
		w.set(w.node(2), true, true)
		if i < 4 {
			w.within(0, 0)
			w.run(time.Second)
		}
	}
	w.stays(20*time.Second, w.node(2))
	if !w.State().Unreachable["node2"].Damped {
		t.Errorf("%+v", w.State())
	}
	w.set(w.node(2), false, false) // the hold starts over
	w.stays(time.Second, w.node(2))
	w.set(w.node(2), true, true)
	w.stays(29*time.Second, w.node(2))
	w.within(0, 2*time.Second)
	w.stays(time.Hour)
	w.set(w.node(2), false, false) // the flapping has expired
	w.within(0, decidedWithin, w.node(2))
	w.set(w.node(2), true, true)
	w.within(0, 0)
}

// Five losses in more than 30 s are no flapping.
func TestSlowFlapping(t *testing.T) {
	w := newWorld(t, 4)
	for range 20 {
		w.set(w.node(2), false, false)
		w.within(0, decidedWithin, w.node(2))
		w.run(3 * time.Second)
		w.set(w.node(2), true, true)
		w.within(0, 0)
		w.run(5 * time.Second)
	}
}

// A process that stalls right after its probes has lost the answers, and probes again before it evaluates.
func TestStall(t *testing.T) {
	w := newWorld(t, 4)
	w.set(w.node(2), false, true)
	for range 100 {
		w.tick() // sends probes
		w.answers = nil
		w.now = w.now.Add(3 * time.Second)
	}
	w.stays(10 * time.Second)
	w.set(w.node(2), true, true)
	w.run(time.Second)
	w.set(w.node(2), false, false)
	w.tick()
	w.now = w.now.Add(3 * time.Second)
	w.within(100*time.Millisecond, time.Second, w.node(2))
}

// The same holds for new input right after the stall.
func TestStallWithNews(t *testing.T) {
	for name, news := range map[string]func(*world){
		"received": func(w *world) { w.set(w.node(3), false, true) },
		"gateways": func(w *world) { w.SetGateways(w.now, both(gateway)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.set(w.node(2), false, false)
			w.run(55 * time.Millisecond)
			w.node(2).kernel = true
			w.now = w.now.Add(3 * time.Second)
			w.answers = nil
			news(w)
			w.stays(10 * time.Second)
		})
	}
}

// A late answer counts: on a slow path, more time is given.
func TestSlowNetwork(t *testing.T) {
	w := newWorld(t, 4)
	w.delay = 150 * time.Millisecond
	w.run(2 * time.Minute)
	w.set(w.node(2), false, true)
	w.stays(5 * time.Minute)
	w.set(w.node(2), true, true)
	w.run(time.Minute)
	w.set(w.node(2), false, false)
	w.within(0, time.Second, w.node(2))
}

// The same holds for a gateway's answers.
func TestSlowGateway(t *testing.T) {
	w := newWorld(t, 1)
	w.delay = 300 * time.Millisecond
	w.run(2 * time.Minute)
	w.set(w.node(1), false, false)
	w.within(0, 2*time.Second, w.node(1))
	w.stays(time.Minute, w.node(1))
}

// TestLoss: with no speaker received and 5 % loss in each direction, no node counts as unreachable.
func TestLoss(t *testing.T) {
	w := newWorld(t, 100)
	w.loss = 0.05
	for range 4 {
		for i := range 100 {
			w.node(i + 1).speaker = !w.node(i + 1).speaker
		}
		w.receive()
		w.stays(3 * time.Minute)
	}
}

// TestCost counts probes while nothing happens, and for a node that is dead for a long time.
func TestCost(t *testing.T) {
	w := newWorld(t, 100)
	w.run(time.Minute)
	ticks := 0
	w.watch = func(view.Reachability) { ticks++ }
	w.probes = 0
	w.run(5 * time.Minute)
	if w.probes != 100*2*10 || ticks > 3*300 {
		t.Errorf("%d probes and %d ticks in 5 minutes", w.probes, ticks)
	}
	w.set(w.node(1), false, false)
	w.run(10 * time.Minute)
	w.probes = 0
	w.run(time.Minute)
	if most := 99*2*2 + 2*120 + 2; w.probes > most {
		t.Errorf("%d probes in a minute with a dead node, want at most %d", w.probes, most)
	}
	one := newWorld(t, 1)
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
		w := newWorld(t, 2+int(seed%7))
		w.random = rand.New(rand.NewPCG(seed, 7))
		w.loss = 0.02
		since := map[string]time.Time{}
		for range 60 {
			for _, h := range w.hosts {
				if h.name == "gateway" || w.random.IntN(4) > 0 {
					continue
				}
				h.speaker, h.kernel = w.random.IntN(3) > 0, true
				if !h.speaker {
					h.kernel = w.random.IntN(2) > 0
				}
				since[h.name] = w.now
			}
			w.receive()
			w.run(time.Duration(w.random.IntN(int(20 * time.Second))))
			for _, h := range w.hosts {
				u, is := w.State().Unreachable[h.name]
				switch lasted := w.now.Sub(since[h.name]); {
				case h.name == "gateway":
				case is && h.kernel && lasted > 2*time.Second && !u.Damped, is && h.speaker && !u.Damped:
					t.Fatalf("seed %d: %+v is unreachable: %+v", seed, h, u)
				case !is && !h.kernel && lasted > 8*time.Second: // the speaker may have been silent for minutes
					t.Fatalf("seed %d: %+v is reachable: %+v", seed, h, w.State())
				}
			}
		}
	}
}
