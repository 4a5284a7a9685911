package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/test/rare"
)

// few returns a converged cluster with stable lists.
func few(t *testing.T, seed uint64, nodes int) *Cluster {
	t.Helper()
	c := New(Config{Seed: seed, Nodes: nodes, VIPs: 12, Profile: member.Standard})
	c.wantOne(t, "the start", 3*time.Second)
	c.Run(5 * time.Second)
	c.reset()
	return c
}

// A node receives nothing any more and can send: other nodes own its addresses, within the same time as of a dead node,
// and consider it unreachable. It owns nothing while it receives nothing, if it can ask a host, and gets nothing back.
func TestOneWayLink(t *testing.T) {
	for _, test := range []struct {
		nodes        int
		api, gateway bool
	}{{2, true, true}, {2, false, true}, {3, true, true}, {3, false, true}, {3, true, false}, {3, false, false}, {12, true, true}} {
		t.Run(fmt.Sprintf("%d nodes, API server %v, gateway %v", test.nodes, test.api, test.gateway), func(t *testing.T) {
			for seed := range uint64(rare.Rounds(2, 8)) {
				c := few(t, seed, test.nodes)
				c.api.down = !test.api
				c.Gateway.Power(test.gateway)
				victim := c.Speakers[int(seed)%test.nodes]
				at := c.Now()
				victim.LoseIn(1, LAN, NodeNetwork)
				c.wantOne(t, "a node receives nothing", 650*time.Millisecond)
				c.Run(650*time.Millisecond - (c.Now() - at))
				for c.Now() < at+5*time.Second {
					c.Run(10 * time.Millisecond)
					if held := victim.held(); test.gateway && len(held) > 0 {
						t.Fatalf("seed %d: %v later the node holds %v", seed, c.Now()-at, held)
					}
				}
				if took := c.decided(at, victim); len(took) != test.nodes-1 || took.Most() > time.Second {
					t.Errorf("seed %d: unreachable for %v", seed, took)
				}
				victim.LoseIn(0, LAN, NodeNetwork)
				if !test.gateway {
					c.Run(time.Second)
				}
				c.wantStill(t, "it receives again", 3*time.Second)
				if held := victim.held(); len(held) > 0 {
					t.Errorf("seed %d: it got back %v", seed, held)
				}
			}
		})
	}
}

// A node receives nothing on the node network alone: it keeps its addresses, and is unreachable for endpoints.
func TestOneWayOnNodeNetwork(t *testing.T) {
	for seed := range uint64(rare.Rounds(2, 8)) {
		c := few(t, seed, 3)
		victim := c.Speakers[int(seed)%3]
		at := c.Now()
		victim.LoseIn(1, NodeNetwork)
		c.wantStill(t, "a node receives nothing on the node network", 5*time.Second)
		if took := c.decided(at, victim); len(took) != 2 || took.Most() > time.Second {
			t.Errorf("seed %d: unreachable for %v", seed, took)
		}
		victim.LoseIn(0, NodeNetwork)
		c.wantStill(t, "it receives again", 5*time.Second)
	}
}

// A share of what is sent to one node is lost: each address has an owner. At 30 % nothing moves.
func TestLossInOneDirection(t *testing.T) {
	for _, nodes := range []int{2, 3, 12} {
		for _, share := range []float64{0.3, 0.7} {
			for seed := range uint64(rare.Rounds(2, 4)) {
				c := few(t, seed, nodes)
				lossy := c.Speakers[int(seed)%nodes]
				lossy.LoseIn(share, LAN, NodeNetwork)
				c.reset()
				c.Run(10 * time.Second)
				vacant, doubled := Long(c.Owners.Vacant), Long(c.Owners.Doubled)
				if vacant.Most() > 10*time.Millisecond || doubled.Most() > time.Second || share < 0.5 && nodes > 2 && len(c.Owners.Moves) > 0 {
					t.Errorf("seed %d, %d nodes, %v lost: %d moves, vacant for %v, doubled for %v", seed, nodes, share,
						len(c.Owners.Moves), vacant.Most(), doubled.Most())
				}
				lossy.LoseIn(0, LAN, NodeNetwork)
				c.wantOne(t, "the loss ended", 2*time.Second)
				c.wantStill(t, "later", 3*time.Second)
			}
		}
	}
}

// A node sends nothing any more: as a death. It yields within AsymmetricWait, if it ranks first.
func TestMute(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		for seed := range uint64(rare.Rounds(2, 4)) {
			c := few(t, seed, nodes)
			mute := c.Speakers[int(seed)%nodes]
			for _, s := range c.Speakers {
				s.misses = append(s.misses, mute)
			}
			c.Run(650 * time.Millisecond)
			for vip := range c.vips {
				if !slices.ContainsFunc(c.Owners.by[vip], func(s *Speaker) bool { return s != mute }) {
					t.Errorf("seed %d: no other node owns %d", seed, vip)
				}
			}
			c.wantOne(t, "it is mute", 4*time.Second)
			if held := mute.held(); len(held) > 0 {
				t.Errorf("seed %d: it holds %v", seed, held)
			}
		}
	}
}

// Some nodes receive nothing from some others, but all are connected by others: nothing moves, and the nodes know each
// other's claims, also of what they take over from a dead node, and after a restart.
func TestMissedByOthers(t *testing.T) {
	for name, missed := range map[string][][2]int{
		"ring":          {{0, 3}, {1, 0}, {2, 1}, {3, 2}}, // each misses the one before it
		"cut in pair":   {{1, 2}, {2, 1}},
		"one direction": {{1, 2}},
	} {
		for _, ended := range []string{"dead", "left", "restarted", "left and returned"} {
			t.Run(name+", one "+ended, func(t *testing.T) {
				for seed := range uint64(rare.Rounds(2, 8)) {
					c := few(t, seed, 4)
					for _, m := range missed {
						c.Speakers[m[0]].misses = append(c.Speakers[m[0]].misses, c.Speakers[m[1]])
					}
					c.wantStill(t, "some miss others", 10*time.Second)
					returns := false
					switch s := c.Speakers[int(seed)%4]; ended {
					case "dead":
						s.PowerOff()
					case "left":
						s.Leave()
					case "left and returned", "restarted":
						if returns = true; ended == "restarted" {
							s.Crash()
						} else {
							s.Leave()
						}
						if seed%2 == 1 || ended != "restarted" {
							c.Run(2 * time.Second)
						} else {
							c.Run(100 * time.Millisecond)
						}
						s.Start()
						c.Run(5 * time.Second) // it asks about nodes that it never received every 3 s
					}
					c.Run(700 * time.Millisecond)
					c.wantOne(t, "later", time.Second)
					c.wantStill(t, "much later", 10*time.Second)
					if returns {
						c.Speakers[int(seed+1)%4].PowerOff()
						c.Run(700 * time.Millisecond)
						c.wantOne(t, "after another one died", time.Second)
						c.wantStill(t, "much later still", 5*time.Second)
					}
				}
			})
		}
	}
}

// TestCutOffStays: a node that is cut off takes no address, neither of others nor its own again, whatever is late on it:
// clients would send to it, and once it is connected again, two nodes would answer.
func TestCutOffStays(t *testing.T) {
	for seed := range uint64(rare.Rounds(4, 20)) {
		c := New(Config{Seed: seed, Nodes: 3, VIPs: 12, Profile: member.Standard, OneNetwork: true})
		c.wantOne(t, "the start", 3*time.Second)
		c.Run(3 * time.Second)
		cut := c.Speakers[seed%3]
		before := cut.held()
		cut.LoseIn(1, LAN, NodeNetwork)
		if seed%2 == 0 { // so late that the others count as dead before any host is asked
			cut.prober.blocked = c.now + int64(600*time.Millisecond)
		}
		for at := time.Duration(0); at < 20*time.Second; at += 10 * time.Millisecond {
			switch c.Run(10 * time.Millisecond); {
			case at%(1330*time.Millisecond) == 0 && at > 0:
				cut.prober.blocked = c.now + int64(400*time.Millisecond)
			case at%(970*time.Millisecond) == 0 && at > 0:
				cut.Pause(300 * time.Millisecond)
			}
			held := cut.held()
			if at >= member.Standard.Dead+300*time.Millisecond {
				before = nil
			}
			if slices.ContainsFunc(held, func(vip int) bool { return !slices.Contains(before, vip) }) {
				t.Fatalf("seed %d: %v after it was cut off, the node holds %v; %v at most", seed, at, held, before)
			}
		}
		cut.LoseIn(0, LAN, NodeNetwork)
		c.wantStill(t, "connected again", 3*time.Second)
	}
}

// TestSilentTwice: a node is silent, received once, and silent again, while the prober waits for a core, so that it sees
// one silence. If then the other node is dead, this one keeps its addresses all the time; if this one is cut off, it takes
// none.
func TestSilentTwice(t *testing.T) {
	for seed := range uint64(rare.Rounds(8, 40)) {
		c := New(Config{Seed: seed, Nodes: 2, VIPs: 12, Profile: member.Standard, OneNetwork: true})
		c.wantOne(t, "the start", 3*time.Second)
		c.Run(3*time.Second + time.Duration(seed)*17*time.Millisecond)
		s, other := c.Speakers[0], c.Speakers[1]
		own := s.held()
		s.misses = []*Speaker{other}
		c.Run(240 * time.Millisecond) // with the heartbeats before and after less than the dead time
		s.misses = nil
		s.prober.blocked = c.now + int64(330*time.Millisecond)
		c.Run(100 * time.Millisecond) // one heartbeat
		cut := seed%2 == 0
		if cut {
			s.LoseIn(1, LAN, NodeNetwork)
		} else {
			other.PowerOff()
		}
		for at := c.Now(); c.Now() < at+4*time.Second; {
			c.Run(5 * time.Millisecond)
			held := s.held()
			lost := slices.ContainsFunc(own, func(vip int) bool { return !slices.Contains(held, vip) })
			taken := slices.ContainsFunc(held, func(vip int) bool { return !slices.Contains(own, vip) })
			if cut && taken || !cut && lost {
				t.Fatalf("seed %d, cut off: %v, after %v: holds %v, before %v", seed, cut, c.Now()-at, held, own)
			}
		}
	}
}
