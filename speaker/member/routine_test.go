package member_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/rare"
)

// Loops wake for their own heartbeats while nothing changes, also while a node is dead for long.
func TestWakes(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(w *world)
		least, most int // per node and second
	}{
		"all alive": {func(*world) {}, 10, 12},
		"one dead":  {func(w *world) { w.nodes[1].off = true }, 10, 12},
		"LAN cut":   {func(w *world) { w.drop = func(_, _ *machine, iface string) bool { return iface == "eth0" } }, 10, 100},
		"no unicast of one": {func(w *world) {
			w.drop = func(from, _ *machine, iface string) bool { return from == w.nodes[1] && iface == "eth1" }
		}, 10, 100},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.settle()
			c.change(w)
			w.run(20*time.Second, nil)
			nodes := 0
			for _, m := range w.nodes {
				if !m.off {
					nodes++
				}
			}
			const seconds = 20
			before := w.woken
			w.run(seconds*time.Second, nil)
			if per := (w.woken - before) / nodes / seconds; per < c.least || per > c.most {
				t.Errorf("%d wakes per node and second, want %d to %d", per, c.least, c.most)
			} else {
				t.Logf("%d wakes per node and second", per)
			}
		})
	}
}

// A node with InternalIPs of both families on one network gets routine heartbeats at these round robin while the others
// receive it by both and by the group. Otherwise it gets them at both.
func TestRoutineRoundRobin(t *testing.T) {
	for name, c := range map[string]struct {
		onLAN  bool
		change func(*world)
		copies int // of a heartbeat by unicast, to three nodes
	}{
		"node network":          {false, func(*world) {}, 3},
		"LAN":                   {true, func(*world) {}, 3},
		"networks of their own": {false, func(w *world) { w.iface6 = "eth2" }, 6},
		"IPv6 lost":             {false, func(w *world) { w.dropTo = netip.Addr.Is6 }, 6},
		"IPv6 lost on the LAN":  {true, func(w *world) { w.dropTo = netip.Addr.Is6 }, 6},
		"group lost":            {true, func(w *world) { w.dropGroup = true }, 6},
		"LAN cut":               {false, func(w *world) { w.drop = func(_, _ *machine, iface string) bool { return iface == "eth0" } }, 6},
		"no VirtualIPs on the LAN": {true, func(w *world) {
			for _, m := range w.nodes {
				m.SetLinks(w.now, nil)
			}
		}, 6},
		"both again": {false, func(w *world) {
			w.dropTo = netip.Addr.Is6
			w.run(10*time.Second, nil)
			w.dropTo = nil
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDualWorld(t, 4, c.onLAN)
			w.settle()
			w.run(2*time.Second, nil)
			c.change(w)
			w.run(10*time.Second, nil)
			const seconds = 20
			before, woken := w.unicast, w.woken
			w.run(seconds*time.Second, nil)
			if wakes := (w.woken - woken) / len(w.nodes) / seconds; c.copies == 3 && wakes > 12 {
				t.Errorf("%d wakes per node and second", wakes)
			}
			per := float64(w.unicast-before) / float64(len(w.nodes)) / seconds // intervals vary by 10 %
			if least, most := 10*float64(c.copies), 11.5*float64(c.copies); per < least || per > most {
				t.Errorf("%.1f datagrams per node and second, want %v to %v", per, least, most)
			}
		})
	}
}

// Copies sent round robin make no false alarm: not with datagrams lost, and not once a family, or the group, is lost.
func TestNoFalseAlarmRoundRobin(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"nothing lost": func(*world) {},
		"IPv6 lost":    func(w *world) { w.dropTo = netip.Addr.Is6 },
		"group lost":   func(w *world) { w.dropGroup = true },
		"both lost":    func(w *world) { w.dropTo, w.dropGroup = netip.Addr.Is6, true },
	} {
		for _, onLAN := range []bool{false, true} {
			w := newDualWorld(t, 10, onLAN)
			w.loss = 0.05
			w.settle()
			w.run(10*time.Second, nil)
			w.watch = func(m *machine) {
				for peer, p := range m.members.Peers {
					if !p.Alive {
						t.Fatalf("%s, on the LAN %t: after %v %s counts %s as dead", name, onLAN, w.now.Sub(epoch), m.name, peer)
					}
				}
			}
			lose(w)
			w.run(time.Duration(rare.Rounds(20, 120))*time.Second, nil)
		}
	}
}

// newDualWorld returns a world whose nodes have InternalIPs of both families, on the LAN or on the node network.
func newDualWorld(t testing.TB, nodes int, onLAN bool) *world {
	w := newWorld(t, nodes)
	w.internal, w.iface6 = func(m *machine) []netip.Addr { return []netip.Addr{m.addr, m.addr6} }, "eth1"
	if onLAN {
		w.internal, w.iface6 = func(m *machine) []netip.Addr { return []netip.Addr{m.lan, m.addr6} }, "eth0"
	}
	for _, m := range w.nodes {
		w.boot(m, 2)
	}
	return w
}

// What changes is read at once, although its receiver reads routine heartbeats later, and despite loss by a later
// heartbeat at the latest.
func TestChangesAreReadAtOnce(t *testing.T) {
	w := newWorld(t, 4)
	w.settle()
	w.run(2*time.Second, nil)
	a, b := w.nodes[0], w.nodes[1]
	claim := func(state view.ClaimState) {
		w.publish(a, view.LocalState{Claims: map[string]view.Claim{"web": {State: state}}})
	}
	has := func(state view.ClaimState) func() bool {
		return func() bool { return b.members.Peers[a.name].Claims[view.IDOf("web")].State == state }
	}
	for round, state := range slices.Repeat([]view.ClaimState{view.Held, view.Declined}, 10) {
		w.run(time.Duration(w.random.IntN(int(member.Standard.Interval)))+time.Second, nil)
		if b.Attentive() {
			t.Fatal("b reads everything at once")
		}
		claim(state)
		if took := w.must("known", time.Second, has(state)); took > 2*time.Millisecond {
			t.Errorf("round %d: known after %v", round, took)
		}
	}
	w.run(time.Second, nil)
	lost := w.now.Add(member.Standard.Interval / 2) // the first datagrams with it
	w.drop = func(from, _ *machine, _ string) bool { return from == a && w.now.Before(lost) }
	claim(view.Held)
	if took := w.must("known", time.Second, has(view.Held)); took > member.Standard.Interval+2*time.Millisecond {
		t.Errorf("known after %v although one heartbeat was lost", took)
	}
}

// A stall of up to a heartbeat's interval less than before the others may take over makes no fence, whenever it begins.
func TestFenceLimit(t *testing.T) {
	for _, profile := range []member.Profile{member.Standard, member.Fast, member.Slow} {
		limit := profile.Dead - profile.Interval*3/4
		for _, late := range []bool{false, true} {
			w := newWorld(t, 1, func(c *member.Config) { c.Profile = profile })
			m := w.nodes[0]
			w.must("settled", 20*time.Second, w.settled)
			if m.FenceAfter() != limit {
				t.Fatalf("%s: a fence after %v, want %v", profile.Name, m.FenceAfter(), limit)
			}
			now := m.LastHeartbeat().Add(limit)
			if late {
				now = now.Add(time.Nanosecond)
			}
			if m.Outdated(now) != late {
				t.Errorf("%s: outdated %v after its heartbeat: %t", profile.Name, now.Sub(m.LastHeartbeat()), !late)
			}
			m.Tick(now, now.Sub(epoch))
			if m.Fenced() != late || !m.LastHeartbeat().Equal(now) {
				t.Errorf("%s: fenced: %t, heartbeat at %v", profile.Name, m.Fenced(), m.LastHeartbeat().Sub(now))
			}
		}
	}
}

// The loop of a real Detector wakes for its own heartbeats, and its wakes are counted: with InternalIPs on a network of
// their own, and on the LAN.
func TestDetectorWakes(t *testing.T) {
	for _, network := range []string{"198.51.100.", "192.0.2."} {
		t.Run(network, func(t *testing.T) {
			h := newHub(t, "a", "b", "c")
			peers := map[string][]netip.Addr{}
			for i, n := range h.nodes {
				peers[n.name] = []netip.Addr{netip.MustParseAddr(network + string(rune('1'+i)))}
			}
			for _, n := range h.nodes {
				n.SetPeers(peers)
			}
			h.settle(t)
			h.wakesSeldom(t, h.nodes[0])
		})
	}
}

// wakesSeldom waits for two seconds in which the node's loop wakes for its own heartbeats and for little else. A stall of
// a busy machine makes more.
func (h *hub) wakesSeldom(t *testing.T, n *node) {
	t.Helper()
	wakes := func() float64 { return n.metric(t, "ironlb_liveness_wakes_total", "") }
	received := func() float64 { return n.metric(t, "ironlb_liveness_received_total", "") }
	deadline, ticker := time.After(2*patience), time.NewTicker(10*time.Millisecond)
	defer ticker.Stop()
	for least := 1e9; ; {
		from, count, end := wakes(), received(), time.After(2*time.Second)
		for waiting := true; waiting; {
			select {
			case <-ticker.C:
				h.observe()
			case <-end:
				waiting = false
			case <-deadline:
				t.Fatalf("at best %v wakes in 2 s", least)
			}
		}
		woken, datagrams := wakes()-from, received()-count
		least = min(least, woken)
		if woken < 30 && woken > 15 && datagrams > 40 { // of 80
			t.Logf("%v wakes for %v datagrams in 2 s", woken, datagrams)
			return
		}
	}
}

// A claim reaches another node's loop at once.
func TestDetectorReadsChangesAtOnce(t *testing.T) {
	h := newHub(t, "a", "b")
	h.settle(t)
	a, b := h.nodes[0], h.nodes[1]
	var all []time.Duration
	for round := 0; len(all) < 21; round++ {
		if round == 100 {
			t.Fatalf("%d of 100 rounds without a stall of the machine", len(all))
		}
		pause := time.After(300*time.Millisecond + time.Duration(round%21)*7*time.Millisecond)
		for waiting := true; waiting; {
			select {
			case <-pause:
				waiting = false
			case <-b.wakes:
				b.Observe()
			}
		}
		a.until(t, "no observer", func(m view.Members) bool {
			if m.Observer { // until it publishes what it decided since it stalled
				a.Publish(view.LocalState{})
			}
			return !m.Observer
		})
		state := view.LocalState{Claims: map[string]view.Claim{"web": {State: view.Held, Generation: int64(round)}}}
		start := time.Now()
		a.Publish(state)
		fenced := false
		b.until(t, "has the claim", func(m view.Members) bool {
			if m, _, _ := a.Observe(); m.Observer { // it stalled, and drops the claim
				fenced = true
				return true
			}
			claim, has := m.Peers["a"].Claims[view.IDOf("web")]
			return has && claim.Generation == int64(round)
		})
		if !fenced {
			all = append(all, time.Since(start))
		}
	}
	slices.Sort(all)
	t.Logf("claims are known after p50 %v, max %v", all[len(all)/2], all[len(all)-1])
	if p50 := all[len(all)/2]; p50 > member.Standard.Interval/4 { // half an interval if it waited
		t.Errorf("p50 %v", p50)
	}
}
