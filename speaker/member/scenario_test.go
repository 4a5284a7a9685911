package member_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/rare"
)

func TestBeginsAsObserver(t *testing.T) {
	w := newWorld(t, 3)
	took := w.must("settled", 2*time.Second, w.settled)
	if took < member.Standard.Dead || took > member.Standard.Dead+3*member.Standard.Interval {
		t.Errorf("observed for %v", took)
	}
	// Alone, too.
	w = newWorld(t, 1)
	took = w.must("settled alone", 2*time.Second, w.settled)
	if took > member.Standard.Dead+2*member.Standard.Interval {
		t.Errorf("alone it observed for %v", took)
	}
}

// An observer waits for the claims of the nodes that it receives, but not forever.
func TestObserverWaitsForClaims(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	w.publish(w.nodes[0], claims(3000))
	w.run(time.Second, nil)
	late := w.nodes[2]
	w.boot(late, 2)
	// No node receives its requests for the rest of the claims; it receives them.
	w.must("node 1 received", time.Second, func() bool { return late.receives(w.nodes[0]) })
	w.drop = func(from, to *machine, _ string) bool { return from == late }
	took := w.must("no observer", 5*time.Second, func() bool { return late.members.Peers != nil && !late.members.Observer })
	if took < 3*time.Second || took > 3*time.Second+2*member.Standard.Interval {
		t.Errorf("observed for %v, want 3 s", took)
	}
	w.drop = nil
	w.boot(late, 3)
	took = w.must("no observer", 5*time.Second, func() bool { return late.members.Peers != nil && !late.members.Observer })
	if took > time.Second {
		t.Errorf("observed for %v", took)
	}
	if got := late.members.Peers["node-1"].Claims[view.IDOf("vip-0")]; got.State != view.Held {
		t.Errorf("the claim is %+v", got)
	}
}

func TestDetectionBounds(t *testing.T) {
	for _, profile := range []member.Profile{member.Standard, member.Fast, member.Slow} {
		t.Run(profile.Name, func(t *testing.T) {
			w := newWorld(t, 8, func(c *member.Config) { c.Profile = profile })
			w.loss = 0.05
			w.must("settled", 20*time.Second, w.settled)
			var all []time.Duration
			for round := range 30 {
				victim := w.nodes[round%len(w.nodes)]
				w.run(time.Duration(w.random.IntN(int(profile.Interval))), nil)
				victim.off = true
				took := w.must("dead everywhere", 2*profile.Dead, func() bool {
					for _, m := range w.nodes {
						if m != victim && (m.receives(victim) || m.members.Peers[victim.name].Alive) {
							return false
						}
					}
					return true
				})
				all = append(all, took)
				w.boot(victim, uint64(round+2), func(c *member.Config) { c.Profile = profile })
				w.must("settled", 20*time.Second, w.settled)
			}
			slices.Sort(all)
			t.Logf("%s: dead everywhere after p50 %v, max %v", profile.Name, all[len(all)/2], all[len(all)-1])
			if all[0] < profile.Dead-profile.Interval-profile.Interval/4 || all[len(all)-1] > profile.Dead+profile.Interval/2 {
				t.Errorf("from %v to %v", all[0], all[len(all)-1])
			}
		})
	}
}

// The LAN of one node is cut while the node network works: the others find it dead there, and it finds itself isolated.
func TestLinkCut(t *testing.T) {
	testLinkCut(t, newWorld(t, 3))
}

// The nodes share a subnet on the LAN, and each has another one there, which comes first.
func TestLinkCutOfSubnets(t *testing.T) {
	w := newWorld(t, 3)
	for i, m := range w.nodes {
		own := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 1}), 24)
		keys := member.SegmentKeys("eth0", []netip.Prefix{own, lanSubnet})
		m.SetLinks(w.now, []member.Link{{Name: "eth0", Keys: keys, MAC: [6]byte{2, 0, 0, 0, 0, byte(i + 1)}}})
	}
	testLinkCut(t, w)
}

func testLinkCut(t *testing.T, w *world) {
	w.settle()
	cut := w.nodes[0]
	w.drop = func(from, to *machine, iface string) bool { return iface == "eth0" && (from == cut || to == cut) }
	took := w.must("dead on the LAN", time.Second, func() bool { return !w.nodes[1].receives(cut) && !w.nodes[2].receives(cut) })
	if took > member.Standard.Dead+member.Standard.Interval/2 {
		t.Errorf("after %v", took)
	}
	if !w.nodes[1].members.Peers[cut.name].Alive {
		t.Error("it is alive on the node network")
	}
	w.must("isolated", 3*member.Standard.Interval, func() bool { _, is := cut.members.Isolated["eth0"]; return is })
	w.run(5*time.Second, nil)
	// Relay evidence still shows that the others are there.
	if _, is := cut.members.Isolated["eth0"]; !is || !cut.receives(w.nodes...) {
		t.Errorf("it is not isolated any more: %+v", cut.members)
	}
	// Healed: it listens for a dead time before it may claim.
	w.drop = nil
	took = w.must("settled", 2*time.Second, w.settled)
	if took < member.Standard.Dead {
		t.Errorf("it stopped listening after %v", took)
	}
	for _, m := range w.nodes {
		if n := m.Counts().Fences; n != 0 {
			t.Errorf("%s: %d fences", m.name, n)
		}
	}
}

// With two nodes, neither can detect whose link is cut: neither gives up.
func TestLinkCutOfTwo(t *testing.T) {
	w := newWorld(t, 2)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.drop = func(_, _ *machine, iface string) bool { return iface == "eth0" }
	w.watch = func(m *machine) {
		if len(m.members.Isolated) > 0 {
			t.Fatalf("%s gives up", m.name)
		}
	}
	w.must("dead on the LAN", time.Second, func() bool { return !a.receives(b) && !b.receives(a) })
	w.run(5*time.Second, nil)
	w.drop, w.watch = nil, nil
	w.must("settled", time.Second, w.settled)
}

// One direction is lost between two nodes; a third one receives both, so no node counts as dead.
func TestAsymmetricLoss(t *testing.T) {
	w := newWorld(t, 4)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.drop = func(from, to *machine, _ string) bool { return from == a && to == b }
	w.loss = 0.05
	w.watch = func(m *machine) {
		if !m.receives(w.nodes...) {
			t.Fatalf("after %v %s counts a node as dead: %+v", w.now.Sub(epoch), m.name, m.members.Peers)
		}
	}
	w.run(5*time.Minute, nil)
	if b.Counts().RelayRequests == 0 || b.Counts().Relayed == 0 {
		t.Errorf("no relay request was sent: %+v", b.Counts())
	}
	// Once it is dead, relay evidence of the past does not keep it alive.
	w.watch, w.loss = nil, 0
	a.off = true
	took := w.must("dead", time.Second, func() bool { return !b.receives(a) && !b.members.Peers[a.name].Alive })
	if took > member.Standard.Dead+member.Standard.Interval {
		t.Errorf("dead after %v", took)
	}
	w.boot(a, 2)
	w.drop = nil
	w.settle()
	// A new node that cannot receive another node detects it by relay requests, too.
	w.drop = func(from, to *machine, iface string) bool { return from == a && to == b && iface == "eth0" }
	w.boot(b, 2)
	w.must("alive by relay", time.Second, func() bool { return b.members.Peers != nil && !b.members.Observer && b.receives(w.nodes...) })
}

func TestPartitionHeals(t *testing.T) {
	w := newWorld(t, 6)
	w.settle()
	side := func(m *machine) bool { return slices.Index(w.nodes, m) < 3 }
	w.drop = func(from, to *machine, _ string) bool { return side(from) != side(to) }
	w.must("parted", time.Second, func() bool {
		for i, m := range w.nodes {
			if i < 3 && !(m.receives(w.nodes[:3]...) && m.receivesNone(w.nodes[3:]...)) || i >= 3 && !(m.receives(w.nodes[3:]...) && m.receivesNone(w.nodes[:3]...)) {
				return false
			}
		}
		return true
	})
	w.run(time.Minute, nil)
	w.drop = nil
	took := w.must("healed", time.Second, w.settled)
	if took > 2*member.Standard.Interval {
		t.Errorf("healed after %v", took)
	}
}

// A stalled node fences itself before it sends anything, and observes.
func TestPause(t *testing.T) {
	w := newWorld(t, 3)
	w.delay = func() time.Duration { return 200 * time.Microsecond } // what it sends stays in order
	w.settle()
	slow := w.nodes[0]
	w.publish(slow, claims(3))
	id := view.IDOf("vip-1")
	w.must("held", time.Second, func() bool { return w.nodes[1].members.Peers[slow.name].Claims[id].State == view.Held })

	slow.nextTick = w.now.Add(5 * time.Second)
	w.must("dead", time.Second, func() bool { return !w.nodes[1].receives(slow) && !w.nodes[2].receives(slow) })
	w.must("awake", 5*time.Second, func() bool { return w.nodes[1].receives(slow) })
	if !slow.members.Observer || !slow.Fenced() || slow.Fences() != 1 {
		t.Errorf("it is no observer: %+v", slow.members)
	}
	if !slow.receives(w.nodes...) {
		t.Error("it counts the others as dead, which it has not received while it slept")
	}
	peer := w.nodes[1].members.Peers[slow.name]
	if len(peer.Claims) != 0 || !peer.Observer {
		t.Errorf("the first state it sends is %+v", peer)
	}
	if _, reported := slow.nodes[slow.name]; !reported {
		t.Error("the change of this node is not reported")
	}
	// Claims set during the observer phase are advertised after it.
	w.publish(slow, claims(3))
	w.run(member.Standard.Dead/2, nil)
	if peer := w.nodes[1].members.Peers[slow.name]; len(peer.Claims) != 0 {
		t.Errorf("it claims as an observer: %v", peer.Claims)
	}
	w.must("held", time.Second, func() bool { return w.nodes[1].members.Peers[slow.name].Claims[id].State == view.Held })
}

// Loops that tick late, by less than the fence, cause no false alarm.
func TestLateLoops(t *testing.T) {
	w := newWorld(t, 5)
	w.loss = 0.05
	for _, m := range w.nodes {
		m.late = func() time.Duration {
			if w.random.IntN(20) == 0 {
				return time.Duration(w.random.IntN(100)) * time.Millisecond
			}
			return time.Duration(w.random.IntN(5)) * time.Millisecond
		}
	}
	w.settle()
	w.watch = func(m *machine) {
		if !m.receives(w.nodes...) || m.members.Observer {
			t.Fatalf("after %v %s: %+v", w.now.Sub(epoch), m.name, m.members)
		}
	}
	w.run(10*time.Minute, nil)
}

// A loop whose ticks are all late also detects a dead node, somewhat later, and no node that is alive.
func TestEveryTickLate(t *testing.T) {
	w := newWorld(t, 3)
	w.loss = 0.05
	w.settle()
	slow := w.nodes[1]
	slow.late = func() time.Duration { return 100*time.Millisecond + time.Duration(w.random.IntN(100))*time.Millisecond }
	w.watch = func(m *machine) {
		if m == slow && !m.receives(w.nodes...) {
			t.Fatalf("after %v: %+v", w.now.Sub(epoch), m.members)
		}
	}
	w.run(10*time.Minute, nil)
	if n := slow.Counts().Fences; n != 0 {
		t.Errorf("%d fences", n)
	}
	w.watch = nil
	w.nodes[0].off = true
	took := w.must("dead", 2*time.Second, func() bool { return !slow.receives(w.nodes[0]) && !slow.members.Peers["node-1"].Alive })
	if most := member.Standard.Dead + 500*time.Millisecond; took > most {
		t.Errorf("after %v, want at most %v", took, most)
	}
}

// Broadcast never passes: only the node network counts.
func TestBroadcastNeverPasses(t *testing.T) {
	w := newWorld(t, 3)
	w.drop = func(_, _ *machine, iface string) bool { return iface == "eth0" }
	w.settle()
	w.nodes[0].off = true
	took := w.must("dead", time.Second, func() bool { return !w.nodes[1].receives(w.nodes[0]) })
	if took > member.Standard.Dead+member.Standard.Interval/2 {
		t.Errorf("after %v", took)
	}
}

func TestRestart(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.publish(a, claims(40))
	w.must("claims", time.Second, func() bool { return len(b.members.Peers[a.name].Claims) == 40 })
	b.vips = map[view.VIPID]struct{}{}
	a.Publish(view.LocalState{})
	w.boot(a, 2)
	w.must("restarted", time.Second, func() bool { return b.members.Peers[a.name].Observer })
	if got := b.members.Peers[a.name]; len(got.Claims) != 0 || len(b.vips) != 40 || !got.Alive {
		t.Errorf("%+v, %d VirtualIPs changed", got, len(b.vips))
	}
	w.settle()
	// The clock went back: the others report that, and it takes a higher incarnation.
	w.boot(a, 1)
	w.must("restarted with an old clock", time.Second, func() bool { return b.members.Peers[a.name].Observer })
	w.settle()
}

// Whether a node can receive through tunnels stays known after the end of its process, and until the next one reports
// it.
func TestDirectStaysUntilReported(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	direct := func() bool { return b.members.Peers[a.name].Direct }
	steady := func(what string, want bool) {
		t.Helper()
		if _, changed := w.run(2*time.Second, func() bool { return direct() != want }); changed {
			t.Errorf("%s: direct %v", what, direct())
		}
	}
	steady("nothing published", false)
	w.publish(a, view.LocalState{Direct: true})
	if took := w.must("direct", time.Second, direct); took > 20*time.Millisecond {
		t.Errorf("reported after %v", took)
	}
	a.Fence(w.now)
	steady("a fence", true)
	w.send(a, a.Goodbye(0))
	steady("ended", true)
	w.boot(a, 2)
	steady("restarted", true)
	a.Publish(view.LocalState{Direct: true, DirectIPv4Only: true})
	w.must("IPv4 only", time.Second, func() bool { return b.members.Peers[a.name].DirectIPv4Only })
	a.Fence(w.now)
	steady("IPv4 only and a fence", true)
	if !b.members.Peers[a.name].DirectIPv4Only {
		t.Error("a fence changed that it can for IPv4 only")
	}
	a.Publish(view.LocalState{})
	w.must("not direct", time.Second, func() bool { return !direct() && !b.members.Peers[a.name].DirectIPv4Only })
	a.Publish(view.LocalState{Direct: true})
	w.must("direct", time.Second, direct)
	w.boot(a, 3)
	a.Publish(view.LocalState{Direct: true})
	steady("restarted and direct", true)
}

func TestGoodbye(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.publish(a, claims(2))
	w.must("claims", time.Second, func() bool { return len(b.members.Peers[a.name].Claims) == 2 })
	w.send(a, a.Goodbye(0))
	a.off = true
	took := w.must("gone", time.Second, func() bool { return !b.members.Peers[a.name].Alive && !w.nodes[2].members.Peers[a.name].Alive })
	if took > 2*time.Millisecond || b.receives(a) || len(b.members.Peers[a.name].Claims) != 0 {
		t.Errorf("after %v %+v", took, b.members.Peers[a.name])
	}
}

// A datagram counts once: neither again by the same path nor, when it is old, by another one.
func TestReplay(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	b.record = true
	w.settle()
	w.run(20*time.Minute, nil)
	recorded := slices.Clone(b.traffic)
	a.off = true
	w.must("dead", time.Second, func() bool { return !b.receives(a) && !b.members.Peers[a.name].Alive })
	for i, p := range recorded {
		for _, iface := range []string{"eth0", "eth1"} {
			p.Iface = iface
			if reason := b.Receive(w.now, b.raw(w), p); reason == member.Accepted {
				t.Fatalf("datagram %d of %d was accepted again on %s", i, len(recorded), iface)
			}
		}
		if i < len(recorded)/2 {
			p.Iface = "eth2" // none of them arrived by it
			if reason := b.Receive(w.now, b.raw(w), p); reason == member.Accepted {
				t.Fatalf("old datagram %d of %d was accepted on another interface", i, len(recorded))
			}
		}
	}
	// An earlier incarnation, after a restart.
	w.boot(a, 2)
	w.settle()
	if reason := b.Receive(w.now, b.raw(w), recorded[len(recorded)-1]); reason != member.DropOld {
		t.Errorf("an earlier incarnation: %q", reason)
	}
	// This report does not start a new incarnation: otherwise its claims would be discarded each time.
	w.run(time.Second, nil)
	for _, p := range b.traffic[len(b.traffic)-4:] {
		if n := binary.BigEndian.Uint64(p.Data[16:]); n != 2 {
			t.Errorf("incarnation %d after a replay", n)
		}
	}
}

// A segment is identified by the subnet that all its nodes share there.
func TestSegmentKey(t *testing.T) {
	key := func(texts ...string) uint64 {
		var subnets []netip.Prefix
		for _, text := range texts {
			subnets = append(subnets, netip.MustParsePrefix(text))
		}
		return member.SegmentKeys("eth0", subnets)[0]
	}
	want := key("2001:db8:1::5/64")
	for name, got := range map[string]uint64{
		"another node's":        key("2001:db8:1::9/64"),
		"with a link-local one": key("fe80::1/64", "2001:db8:1::5/64"),
		"with a single address": key("2001:db8::7/128", "2001:db8:1::5/64"),
		"with one of IPv4 also": key("203.0.113.7/32", "2001:db8:1::5/64"),
	} {
		if got != want {
			t.Errorf("%s: another key", name)
		}
	}
	if key("2001:db8::7/128") != key("2001:db8::8/128") || key() == want || key("192.0.2.1/24", "2001:db8:1::5/64") == want {
		t.Error("keys of single addresses alone, of none, or of IPv4 first")
	}
	subnets := []netip.Prefix{netip.MustParsePrefix("2001:db8:1::5/64"), netip.MustParsePrefix("192.0.2.1/24"),
		netip.MustParsePrefix("2001:db8:1::6/64"), netip.MustParsePrefix("fe80::1/64")}
	if got := member.SegmentKeys("eth0", subnets); !slices.Equal(got, []uint64{key("192.0.2.1/24"), want}) {
		t.Errorf("the keys of two subnets are %v", got)
	}
}

func TestForeignDatagrams(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*member.Config)
		want   member.Drop
	}{
		{"wrong key", func(c *member.Config) { c.Keys = [][]byte{bytes.Repeat([]byte("x"), 32)} }, member.DropKey},
		{"other cluster", func(c *member.Config) { c.Cluster = "other" }, member.DropCluster},
		{"same name", func(c *member.Config) { c.Node, c.Incarnation = "node-1", 9 }, member.DropName},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.boot(w.nodes[1], 1, c.change)
			w.run(2*time.Second, nil)
			if len(w.nodes[0].members.Peers) != 0 || w.nodes[0].drops[c.want] == 0 {
				t.Errorf("accepted: %v, dropped: %v", w.nodes[0].members.Peers, w.nodes[0].drops)
			}
		})
	}
	t.Run("tampered", func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[1].record = true
		w.run(time.Second, nil)
		_, other := newWorld(t, 2), w.nodes[1]
		p := other.traffic[0]
		w.boot(other, 2)
		for bit := range 8 * len(p.Data) {
			forged := p
			forged.Data = slices.Clone(p.Data)
			forged.Data[bit/8] ^= 1 << (bit % 8)
			if reason := other.Receive(w.now, other.raw(w), forged); reason == member.Accepted {
				t.Fatalf("accepted with bit %d flipped", bit)
			}
		}
		if reason := other.Receive(w.now, other.raw(w), p); reason != member.Accepted {
			t.Errorf("as it was: %q", reason)
		}
	})
	// One hop limit less: the node is alive, but not received on the segment, where another node is.
	t.Run("passed on by a router", func(t *testing.T) {
		w := newWorld(t, 3)
		b := w.nodes[1]
		b.record = true
		w.run(time.Second, nil)
		w.boot(b, 2, func(c *member.Config) { c.Nonce = 1 }) // the recorded proofs answer its challenges
		b.nextTick = w.now.Add(time.Hour)
		for _, p := range b.traffic {
			p.OnLink = p.Source == w.nodes[2].lan
			b.Receive(w.now, b.raw(w), p)
		}
		m, _, _ := b.Members()
		if a := m.Peers["node-1"]; !a.Alive || len(a.On) != 0 {
			t.Errorf("%+v", a)
		}
		if c := m.Peers["node-3"]; !c.Alive || len(c.On) != 1 {
			t.Errorf("%+v", c)
		}
	})
}

// Keys change without loss: the new one behind the old one, then in front, then alone.
func TestKeyChange(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	old, next := secret, bytes.Repeat([]byte("n"), 32)
	w.watch = func(m *machine) {
		if !m.receives(w.nodes...) || m.drops[member.DropKey] > 0 {
			t.Fatalf("%s: %+v, %v", m.name, m.members, m.drops)
		}
	}
	for _, keys := range [][][]byte{{old, next}, {next, old}, {next}} {
		for _, m := range w.nodes {
			if err := m.SetKeys(keys); err != nil {
				t.Fatal(err)
			}
			w.run(time.Second, nil)
		}
	}
	for _, bad := range [][][]byte{nil, {old, old}, {old, next, old}, {[]byte("short")}} {
		if err := w.nodes[0].SetKeys(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	w.run(time.Second, nil)
}

// Claims of 2,000 VirtualIPs arrive despite lost datagrams, and so do the changes.
func TestClaimsConverge(t *testing.T) {
	w := newWorld(t, 4)
	w.settle()
	a := w.nodes[0]
	same := func(state view.LocalState) func() bool {
		want := map[view.VIPID]view.Claim{}
		for name, claim := range state.Claims {
			want[view.IDOf(name)] = claim
		}
		return func() bool {
			for _, m := range w.nodes[1:] {
				if got := m.members.Peers[a.name]; !got.Synced || !maps.Equal(got.Claims, want) {
					return false
				}
			}
			return true
		}
	}
	for _, loss := range []float64{0, 0.05, 0.3} {
		w.loss = loss
		w.publish(a, view.LocalState{})
		w.must("nothing", 30*time.Second, same(view.LocalState{}))
		state := claims(2000)
		w.publish(a, state)
		took := w.must("all claims", 30*time.Second, same(state))
		t.Logf("loss %v: 2,000 claims after %v", loss, took)
		if loss == 0 && took > 200*time.Millisecond {
			t.Errorf("without loss after %v", took)
		}
		for i := range 50 {
			claim := view.Claim{State: view.HandingOver, Generation: int64(i), Rank: 3, Successor: "node-2"}
			if i%3 == 0 {
				claim = view.Claim{State: view.Declined, Generation: int64(i)}
			}
			state.Claims[fmt.Sprintf("vip-%d", i)] = claim
			if i%5 == 0 {
				delete(state.Claims, fmt.Sprintf("vip-%d", i+100))
			}
		}
		w.publish(a, state)
		took = w.must("the changes", 30*time.Second, same(state))
		if loss == 0 && took > 5*time.Millisecond {
			t.Errorf("changes without loss after %v", took)
		}
		// A new node receives all of it.
		w.boot(w.nodes[3], w.bump())
		w.must("all claims at a new node", 30*time.Second, same(state))
	}
}

var bumped uint64 = 100

func (w *world) bump() uint64 { bumped++; return bumped }

// A carrier is lost and returns: no node is received there, and then this node listens for a dead time.
func TestCarrier(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a := w.nodes[0]
	w.link(a, false)
	a.nextTick = w.now
	w.must("reported", time.Millisecond, func() bool { return a.receivesNone(w.nodes...) })
	w.drop = func(from, to *machine, iface string) bool { return iface == "eth0" && (from == a || to == a) }
	w.must("dead on the LAN", time.Second, func() bool { return !w.nodes[1].receives(a) })
	w.run(time.Second, nil)
	w.drop = nil
	w.link(a, true)
	a.nextTick = w.now
	took := w.must("settled", time.Second, w.settled)
	if took < member.Standard.Dead {
		t.Errorf("it listened for %v only", took)
	}
}

// A loss of up to 5 % makes no node count as dead.
func TestNoFalseAlarm(t *testing.T) {
	for _, profile := range []member.Profile{member.Standard, member.Fast} {
		for _, unicast := range []bool{true, false} {
			w := newWorld(t, 10, func(c *member.Config) { c.Profile = profile })
			w.loss = 0.05
			w.drop = func(_, _ *machine, iface string) bool { return iface == "eth1" && !unicast }
			w.settle()
			w.watch = func(m *machine) {
				if !m.receives(w.nodes...) {
					t.Fatalf("%s, node network %v: after %v %s counts a node as dead", profile.Name, unicast, w.now.Sub(epoch), m.name)
				}
			}
			w.run(time.Duration(rare.Rounds(30, 180))*time.Second, nil)
			var requested, relayed uint64
			for _, m := range w.nodes {
				requested, relayed = requested+m.Counts().RelayRequests, relayed+m.Counts().Relayed
			}
			t.Logf("%s, node network %v: %d relay requests, %d times kept alive by an answer", profile.Name, unicast, requested, relayed)
		}
	}
}

// The same calls produce the same bytes.
func TestSameAgain(t *testing.T) {
	run := func() uint64 {
		w := newWorld(t, 4)
		w.loss = 0.1
		w.settle()
		w.publish(w.nodes[0], claims(500))
		w.run(time.Second, nil)
		w.nodes[0].nextTick = w.now.Add(time.Second)
		w.publish(w.nodes[1], claims(300))
		w.run(5*time.Second, nil)
		return w.hash.Sum64()
	}
	if a, b := run(), run(); a != b {
		t.Errorf("%x and %x", a, b)
	}
}

// Ticks without changes allocate nothing, regardless of the claims.
func TestTicksAreCheap(t *testing.T) {
	w := newWorld(t, 30)
	w.settle()
	m := w.nodes[0]
	w.publish(m, claims(2000))
	w.run(2*time.Second, nil)
	now := w.now
	allocs := testing.AllocsPerRun(100, func() {
		now = now.Add(time.Millisecond)
		m.Tick(now, now.Sub(epoch))
	})
	if allocs > 0 {
		t.Errorf("%v allocations per tick", allocs)
	}
}

// A change of a node's claims reports those VirtualIPs, and not the node: otherwise all VirtualIPs that list it would
// be evaluated again.
func TestClaimsDoNotNameTheirNode(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	sayer, other := w.nodes[0], w.nodes[1]
	w.run(time.Second, nil)
	clear(other.nodes)
	clear(other.vips)
	w.publish(sayer, claims(5))
	w.must("reported", time.Second, func() bool { return len(other.vips) == 5 })
	if _, named := other.nodes[sayer.name]; named {
		t.Errorf("%s is reported as changed although only its claims changed", sayer.name)
	}
	if got := len(other.members.Peers[sayer.name].Claims); got != 5 {
		t.Errorf("%d claims of %s are known, want 5", got, sayer.name)
	}
	sayer.off = true
	w.must("dead", time.Second, func() bool { return other.receivesNone(sayer) })
	if _, named := other.nodes[sayer.name]; !named {
		t.Errorf("%s is not named although it is dead", sayer.name)
	}
}

// A node whose speaker restarts counts as alive and keeps its claims while its kernel answers, until the next process
// has decided.
func TestRestartRetains(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	w.publish(a, claims(40))
	holds := func(n *machine) bool {
		m := n.members.Peers[a.name]
		return m.Alive && len(m.On) == 1 && len(m.Claims) == 40
	}
	w.must("claims", time.Second, func() bool { return holds(b) && holds(c) })
	w.watch = func(m *machine) {
		if (m == b || m == c) && (!holds(m) || len(m.members.Isolated) > 0 || m.members.Returned > 0) {
			t.Fatalf("at %v %s has %+v", w.now.Sub(epoch), m.name, m.members)
		}
	}
	w.send(a, a.Goodbye(30*time.Second))
	a.off = true
	w.run(20*time.Second, nil)
	w.boot(a, 2, func(c *member.Config) { c.Retained = true })
	w.run(5*time.Second, nil)
	if b.members.Peers[a.name].Observer {
		t.Error("it observes still")
	}
	w.publish(a, claims(39)) // another node took one
	w.watch = nil
	a.Settled()
	w.must("its own claims", time.Second, func() bool {
		return len(b.members.Peers[a.name].Claims) == 39 && len(c.members.Peers[a.name].Claims) == 39
	})
	if n := b.Counts().FalseDeaths; n != 0 {
		t.Errorf("%d false deaths", n)
	}
}

// Retention ends with its time, with a process that was not expected, and with the death of the next process.
func TestRetainedEnds(t *testing.T) {
	begin := func(t *testing.T) (*world, func() view.Member) {
		w := newWorld(t, 3)
		w.settle()
		a, b := w.nodes[0], w.nodes[1]
		w.publish(a, claims(2))
		w.must("claims", time.Second, func() bool { return len(b.members.Peers[a.name].Claims) == 2 })
		w.send(a, a.Goodbye(10*time.Second))
		a.off = true
		w.run(9*time.Second, nil)
		if m := b.members.Peers[a.name]; !m.Alive || len(m.Claims) != 2 {
			t.Fatalf("%+v", m)
		}
		return w, func() view.Member { return b.members.Peers[a.name] }
	}
	t.Run("time", func(t *testing.T) {
		w, seen := begin(t)
		w.must("gone", 1100*time.Millisecond, func() bool { return !seen().Alive && len(seen().Claims) == 0 })
	})
	t.Run("another process", func(t *testing.T) {
		w, seen := begin(t)
		w.boot(w.nodes[0], 2)
		w.must("another one", time.Second, func() bool { return seen().Alive && len(seen().Claims) == 0 })
	})
	t.Run("time of the next process", func(t *testing.T) {
		w, seen := begin(t)
		w.boot(w.nodes[0], 2, func(c *member.Config) { c.Retained = true })
		w.run(900*time.Millisecond, nil)
		if len(seen().Claims) != 2 {
			t.Fatalf("%+v", seen())
		}
		w.must("its own claims", 300*time.Millisecond, func() bool { return seen().Alive && len(seen().Claims) == 0 })
	})
	t.Run("end of the next process", func(t *testing.T) {
		w, seen := begin(t)
		w.boot(w.nodes[0], 2, func(c *member.Config) { c.Retained = true })
		w.run(300*time.Millisecond, nil)
		w.send(w.nodes[0], w.nodes[0].Goodbye(0))
		w.nodes[0].off = true
		w.must("gone", 10*time.Millisecond, func() bool { return !seen().Alive && len(seen().Claims) == 0 })
	})
}

// A node that dies while it is away is detected within seconds, on one interface if only that is cut. A node that
// answers counts as alive for the duration that it announced.
func TestAwayAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		harm        func(w *world, a *machine)
		least, most time.Duration // until it is missed
	}{
		"nothing":  {func(*world, *machine) {}, 0, 0},
		"loss":     {func(w *world, _ *machine) { w.loss = 0.05 }, 0, 0},
		"no power": {func(_ *world, a *machine) { a.dead = true }, 5 * time.Second, 6100 * time.Millisecond},
		"LAN cut": {func(w *world, a *machine) {
			w.drop = func(from, to *machine, iface string) bool { return iface == "eth0" && (from == a || to == a) }
		}, 5 * time.Second, 6100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			w.settle()
			a, b := w.nodes[0], w.nodes[1]
			w.publish(a, claims(2))
			seen := func() view.Member { return b.members.Peers[a.name] }
			w.must("claims", time.Second, func() bool { return len(seen().Claims) == 2 })
			w.send(a, a.Goodbye(125*time.Second))
			a.off = true
			w.run(20*time.Second, nil)
			if m := seen(); !m.Away || !b.receives(a) || len(m.Claims) != 2 {
				t.Fatalf("%+v", m)
			}
			c.harm(w, a)
			if c.most == 0 {
				if took, gone := w.run(100*time.Second, func() bool { return !b.receives(a) || len(seen().Claims) != 2 }); gone {
					t.Fatalf("gone after %v", took)
				}
				return
			}
			took := w.must("gone", c.most, func() bool { return !b.receives(a) })
			if took < c.least {
				t.Errorf("gone after %v", took)
			}
			if m := seen(); m.Alive != (name == "LAN cut") { // the node network answers still
				t.Errorf("%+v", m)
			}
		})
	}
}

// The probing node loses its carrier for a while: that is no silence of the other node.
func TestProberUnplugged(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.send(a, a.Goodbye(2*time.Minute))
	a.off = true
	w.run(10*time.Second, nil)
	w.link(b, false)
	w.drop = func(from, to *machine, iface string) bool { return iface == "eth0" && (from == b || to == b) }
	w.run(10*time.Second, nil)
	w.drop = nil
	w.link(b, true)
	w.must("alive there again", time.Second, func() bool { return b.receives(a) })
	if took, gone := w.run(30*time.Second, func() bool { return !b.receives(a) }); gone {
		t.Errorf("given up %v after the return", took)
	}
}

// The probing node is cut off but keeps its carrier: it gets no results, and the other node still counts as alive when
// it is back. A path that works by relay only is not probed.
func TestProberCut(t *testing.T) {
	for _, network := range []string{"eth0", "all", "one path"} {
		t.Run(network, func(t *testing.T) {
			w := newWorld(t, 4)
			cut := func(from, to *machine, iface string) bool {
				if network == "one path" {
					return iface == "eth0" && from.name <= "node-2" && to.name <= "node-2"
				}
				return (network == "all" || iface == "eth0") && (from.name == "node-2") != (to.name == "node-2")
			}
			w.settle()
			a, b := w.nodes[0], w.nodes[1]
			if network == "one path" {
				w.drop = cut
				w.run(5*time.Second, nil)
			}
			w.must("received", time.Second, func() bool { return b.receives(a) })
			w.send(a, a.Goodbye(2*time.Minute))
			w.run(10*time.Millisecond, nil)
			a.off = true
			if network != "one path" {
				w.run(10*time.Second, nil)
				w.drop = cut
				w.run(10*time.Second, nil)
				w.drop = nil
				w.must("alive again", time.Second, func() bool { return b.receives(a) })
			}
			if took, gone := w.run(30*time.Second, func() bool { return !b.receives(a) }); gone {
				t.Errorf("given up after %v", took)
			}
		})
	}
}

// A node that was given up while it was away may have answered at the same time as its successor: the owner must
// announce again.
func TestGivenUpReturns(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.send(a, a.Goodbye(2*time.Minute))
	w.run(10*time.Millisecond, nil)
	a.off = true
	w.drop = func(from, to *machine, _ string) bool { return from == a || to == a }
	w.must("given up", 10*time.Second, func() bool { return !b.members.Peers[a.name].Alive })
	w.drop = nil
	w.run(time.Second, nil)
	if n := b.members.Returned; n != 0 {
		t.Fatalf("%d have returned", n)
	}
	w.boot(a, 2, func(c *member.Config) { c.Retained = true })
	w.must("returned", time.Second, func() bool { return b.receives(a) && b.members.Returned == 1 })
}

// The next process, which has not decided, is cut off until its node is given up, and is received again.
func TestNextProcessReturns(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.publish(a, claims(2))
	w.run(time.Second, nil)
	w.send(a, a.Goodbye(2*time.Minute))
	a.off = true
	w.run(5*time.Second, nil)
	w.boot(a, 2, func(c *member.Config) { c.Retained = true })
	w.run(2*time.Second, nil)
	w.drop = func(from, to *machine, _ string) bool { return from == a || to == a }
	w.must("given up", 10*time.Second, func() bool { return !b.members.Peers[a.name].Alive })
	w.run(3*time.Second, nil)
	w.drop = nil
	w.must("received again", time.Second, func() bool { return b.receives(a) })
	if b.members.Returned == 0 {
		t.Error("no owner re-announces, and two may have answered")
	}
}

// A node that never answers after its goodbye is detected, too. A stall of the probing node does not count against it.
func TestAwayNeverAnswers(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.send(a, a.Goodbye(time.Minute))
	a.off = true
	w.run(10*time.Second, nil)
	b.late = func() time.Duration { b.late = nil; return 20 * time.Second }
	fences := b.Counts().Fences
	if took, gone := w.run(30*time.Second, func() bool { return b.members.Peers != nil && !b.members.Peers[a.name].Alive }); gone {
		t.Fatalf("gone after %v", took)
	}
	if b.Counts().Fences == fences {
		t.Fatal("it did not stall")
	}
	w.boot(a, 2)
	w.must("back", 2*time.Second, func() bool { return b.receives(a) })
	w.send(a, a.Goodbye(time.Minute))
	a.off, a.dead = true, true
	took := w.must("gone", 6100*time.Millisecond, func() bool { return !b.members.Peers[a.name].Alive })
	if took < 5*time.Second {
		t.Errorf("gone after %v", took)
	}
}

// The next process dies before it has decided, or is starved: the kernel still answers, except for the VirtualIPs that
// are decided.
func TestRetainsWhileTheNextProcessDies(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.publish(a, claims(2))
	seen := func() view.Member { return b.members.Peers[a.name] }
	w.must("claims", time.Second, func() bool { return len(seen().Claims) == 2 })
	w.send(a, a.Goodbye(10*time.Second))
	a.off = true
	w.must("away", time.Second, func() bool { return seen().Away })
	w.boot(a, 2, func(c *member.Config) { c.Retained = true })
	w.must("back", time.Second, func() bool { return !seen().Away && len(seen().Claims) == 2 })
	w.run(2*time.Second, nil)
	w.publish(a, claims(1)) // nothing is decided on the other one yet
	w.run(time.Second, nil)
	if len(seen().Claims) != 2 {
		t.Fatalf("%+v", seen())
	}
	a.off = true
	w.must("away again", time.Second, func() bool { m := seen(); return m.Alive && m.Away && len(m.On) == 1 && len(m.Claims) == 1 })
	w.boot(a, 3, func(c *member.Config) { c.Retained = true })
	w.must("back again", time.Second, func() bool { m := seen(); return !m.Away && len(m.Claims) == 1 })
	a.off = true
	w.run(4*time.Second, nil)
	if !seen().Away {
		t.Errorf("%+v", seen())
	}
	w.must("gone", 5*time.Second, func() bool { return !seen().Alive && len(seen().Claims) == 0 })
}

// A port fails while a node is away: the two others receive each other by the node network only, and neither gives up.
func TestCutWhileAnotherIsAway(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	w.send(a, a.Goodbye(10*time.Second))
	a.off = true
	w.drop = func(from, to *machine, iface string) bool { return iface == "eth0" && (from == c || to == c) }
	w.watch = func(m *machine) {
		if m == b && len(b.members.Isolated) > 0 {
			t.Fatalf("at %v: %+v", w.now.Sub(epoch), m.members)
		}
	}
	w.run(8*time.Second, nil)
}

// One of three nodes is cut off the LAN, so that the two others receive only each other there. One of these is late: it
// stalls before it sends, or before it reads what has arrived on the LAN. It is isolated no more than the other one.
func TestLateIsNotIsolated(t *testing.T) {
	for name, reads := range map[string]bool{"sends": false, "reads": true} {
		t.Run(name, func(t *testing.T) {
			for round := range 300 {
				testLate(t, reads, rand.New(rand.NewPCG(2, uint64(round))))
			}
		})
	}
}

func testLate(t *testing.T, reads bool, random *rand.Rand) {
	w := newWorld(t, 3)
	w.random = random
	cut, late := w.nodes[0], w.nodes[1]
	w.boot(late, 2) // at another phase
	w.settle()
	stall := 300*time.Millisecond + time.Duration(random.IntN(150))*time.Millisecond
	if reads {
		stall -= 100 * time.Millisecond
	}
	w.drop = func(from, to *machine, iface string) bool {
		return iface == "eth0" && (from == cut || to == cut || reads && late.late != nil && to == late)
	}
	ticks := 0 // of the late node, since it is to be late
	w.watch = func(m *machine) {
		if m != cut && len(m.members.Isolated) > 0 && m.Counts().Fences == 0 { // a fenced node observes in any case
			t.Fatalf("at %v: %s: %+v", w.now.Sub(epoch), m.name, m.members)
		}
		if m == late && m.late != nil {
			if ticks++; ticks == 2 {
				m.late = nil
			}
		}
	}
	w.run(time.Duration(random.IntN(150))*time.Millisecond, nil)
	late.late = func() time.Duration { return stall * time.Duration(1-ticks) }
	w.run(2*time.Second, nil)
	if ticks != 2 {
		t.Fatalf("%d ticks", ticks)
	}
}

// With two nodes, the remaining one does not count itself as cut off, and keeps what it holds.
func TestRetainsWithOneOther(t *testing.T) {
	w := newWorld(t, 2)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.watch = func(m *machine) {
		if m == b && (len(m.members.Isolated) > 0 || m.members.Observer || !m.members.Peers[a.name].Alive) {
			t.Fatalf("at %v: %+v", w.now.Sub(epoch), m.members)
		}
	}
	w.send(a, a.Goodbye(10*time.Second))
	a.off = true
	w.run(8*time.Second, nil)
	w.boot(a, 2)
	w.run(3*time.Second, nil)
}
