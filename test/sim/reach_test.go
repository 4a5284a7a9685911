package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/test/rare"
)

// probed returns a cluster in which every node has a witness for every other node.
func probed(t *testing.T, config Config) *Cluster {
	t.Helper()
	config.VIPs = config.Nodes
	if config.Profile.Name == "" {
		config.Profile = member.Standard
	}
	c := New(config)
	c.Run(8 * time.Second)
	for _, s := range c.Speakers {
		if state := s.State(); len(state.Unreachable)+len(state.Unwitnessed) > 0 || state.CutOff {
			t.Fatalf("seed %d, at the start, %s: %+v", config.Seed, s.Name, state)
		}
	}
	return c
}

// decided returns how long after a time each of the others found a node unreachable.
func (c *Cluster) decided(at time.Duration, dead *Speaker) (took Times) {
	for _, v := range c.Verdicts {
		if v.Of == dead.Name && v.At >= at {
			took = append(took, v.At-at)
		}
	}
	return took
}

// wantNoOwner checks that no node has been considered unreachable so far.
func (c *Cluster) wantNoOwner(t *testing.T, when string) {
	t.Helper()
	for _, v := range c.Verdicts {
		t.Errorf("seed %d, %s: %+v", c.config.Seed, when, *v)
	}
}

// wantOnly checks which nodes a node considers unreachable, and whether it may be cut off.
func wantOnly(t *testing.T, when string, s *Speaker, cutOff bool, unreachable ...*Speaker) {
	t.Helper()
	for _, o := range s.cluster.Speakers {
		if got := s.Unreachable(o); got != slices.Contains(unreachable, o) {
			t.Errorf("%s: %s takes %s for unreachable: %v", when, s.Name, o.Name, got)
		}
	}
	if s.State().CutOff != cutOff {
		t.Errorf("%s: %s may be cut off: %v", when, s.Name, !cutOff)
	}
}

// decidedWithin is the documented time to a verdict, in addition to the dead time.
const decidedWithin = 150 * time.Millisecond

// A dead node is unreachable for all others in time; a returning node is reachable at once.
func TestDeathDecided(t *testing.T) {
	for _, loss := range []float64{0, 0.05} {
		for _, p := range []member.Profile{member.Standard, member.Fast} {
			c := probed(t, Config{Seed: 1, Nodes: 12, Profile: p, Loss: loss})
			most := p.Dead + decidedWithin
			if loss > 0 {
				most += 50 * time.Millisecond
			}
			var all Times
			for i := range rare.Rounds(7, 20) {
				dead := c.Speakers[i%len(c.Speakers)]
				c.Run(time.Duration(140*i/rare.Rounds(7, 20)) * time.Millisecond) // at each phase of its heartbeats
				at := c.Now()
				dead.PowerOff()
				c.Run(2 * time.Second)
				took := c.decided(at, dead)
				if len(took) != len(c.Speakers)-1 || took.Most() > most {
					t.Errorf("%s, loss %v: %d of %d others have decided, after %v at most, want %v",
						p.Name, loss, len(took), len(c.Speakers)-1, took.Most(), most)
				}
				all = append(all, took...)
				dead.Start()
				c.Run(5 * time.Second)
				for _, v := range c.Verdicts {
					if v.Until == 0 || v.Wrong || v.Back > 250*time.Millisecond { // a heartbeat or two
						t.Errorf("%s, loss %v: %+v", p.Name, loss, *v)
					}
				}
			}
			t.Logf("%s, loss %v: p50 %v, p99 %v, max %v", p.Name, loss, all.Quantile(0.5), all.Quantile(0.99), all.Most())
		}
	}
}

// A silent speaker is not a dead node: it crashes, is stopped, is replaced, alone and with all others.
func TestSilentSpeakers(t *testing.T) {
	for _, seed := range seeds {
		c := probed(t, Config{Seed: seed, Nodes: 12, Loss: 0.05})
		s := c.Speakers[int(seed)]
		s.Crash()
		c.Run(5 * time.Second)
		c.wantNoOwner(t, "a speaker has crashed")
		s.Start()
		c.Run(3 * time.Second)
		s.Pause(4 * time.Second)
		c.Run(8 * time.Second)
		c.wantNoOwner(t, "a process was stopped")
		for _, s := range c.Speakers {
			s.Leave()
			c.Until(6*time.Second, func() bool { return !s.Running() })
			c.Run(100 * time.Millisecond)
			s.Start()
			c.Run(200 * time.Millisecond)
		}
		c.wantNoOwner(t, "all were replaced one by one")
		for _, s := range c.Speakers[1:] {
			s.Crash()
		}
		c.Run(5 * time.Second)
		for _, s := range c.Speakers[1:] {
			s.Start()
		}
		c.Run(3 * time.Second)
		c.wantNoOwner(t, "all others crashed at once")
		for _, s := range c.Speakers {
			s.Pause(3 * time.Second)
		}
		c.Run(6 * time.Second)
		c.wantNoOwner(t, "all were stopped at once")
		c.Speakers[3].SetAsymmetric(true) // a filter that drops the speakers' port
		c.Run(5 * time.Second)
		c.Speakers[3].SetAsymmetric(false)
		c.Run(2 * time.Second)
		c.wantNoOwner(t, "one receives no speaker")
	}
}

// busy is every third node, with stalls longer than the dead time.
var busy = Busy{
	Share: 0.34, Heartbeat: 20 * time.Millisecond, Prober: 100 * time.Millisecond, Kernel: 20 * time.Millisecond,
	Paused:  Bursts{Every: 3 * time.Second, Least: 100 * time.Millisecond, Most: 2 * time.Second},
	Blocked: Bursts{Every: 3 * time.Second, Least: 50 * time.Millisecond, Most: 2 * time.Second},
}

// With 5 % loss and busy nodes no node is wrongly considered unreachable, and dead nodes are found.
func TestBusy(t *testing.T) {
	for _, seed := range seeds {
		c := probed(t, Config{Seed: seed, Nodes: 12, Loss: 0.05, Busy: busy})
		c.Run(30 * time.Second)
		c.wantNoOwner(t, "busy nodes")
		for _, s := range c.Speakers[:2] {
			at := c.Now()
			s.PowerOff()
			c.Run(15 * time.Second)
			took := c.decided(at, s)
			if len(took) != len(c.Speakers)-1 {
				t.Errorf("seed %d: %d of %d others have decided", seed, len(took), len(c.Speakers)-1)
			}
			t.Logf("seed %d: p50 %v, max %v", seed, took.Quantile(0.5), took.Most())
			s.Start()
			c.Run(5 * time.Second)
		}
		for _, v := range c.Verdicts {
			if v.Wrong || v.Until == 0 {
				t.Errorf("seed %d: %+v", seed, *v)
			}
		}
	}
}

// A suspended virtual machine does not answer; when it resumes it answers at once. It considers no other node
// unreachable.
func TestSuspendedKernel(t *testing.T) {
	for _, seed := range seeds {
		c := probed(t, Config{Seed: seed, Nodes: 12, Loss: 0.01})
		s := c.Speakers[int(seed)]
		for _, queue := range []int{0, 250} {
			c.Verdicts = nil
			s.Suspend(3*time.Second, queue)
			c.Run(8 * time.Second)
			if len(c.Verdicts) != len(c.Speakers)-1 {
				t.Errorf("seed %d: %d verdicts", seed, len(c.Verdicts))
			}
			for _, v := range c.Verdicts {
				if v.Of != s.Name || v.Wrong || v.Until == 0 || v.Back > 150*time.Millisecond {
					t.Errorf("seed %d: %+v", seed, *v)
				}
			}
		}
	}
}

// Of two nodes the survivor decides while its gateway answers, and not while nothing answers. A node that is cut off
// changes nothing.
func TestTwoNodes(t *testing.T) {
	for _, seed := range seeds {
		for _, one := range []bool{false, true} {
			c := probed(t, Config{Seed: seed, Nodes: 2, OneNetwork: one})
			a, b := c.Speakers[0], c.Speakers[1]
			at := c.Now()
			b.PowerOff()
			c.Run(time.Second)
			wantOnly(t, "the other is dead", a, false, b)
			if took := c.decided(at, b); took.Most() > c.config.Profile.Dead+decidedWithin {
				t.Errorf("seed %d: after %v", seed, took)
			}
			b.Start()
			c.Run(5 * time.Second)
			wantOnly(t, "the other is back", a, false)

			c.Gateway.Power(false)
			b.PowerOff()
			c.Run(time.Minute)
			wantOnly(t, "no node answers", a, true)
			c.Gateway.Power(true)
			c.Run(2 * time.Second)
			wantOnly(t, "the gateway answers", a, false, b)
			b.Start()
			c.Run(5 * time.Second)

			b.Group(1, LAN, NodeNetwork)
			c.Run(time.Minute)
			wantOnly(t, "the other is cut off", a, false, b)
			wantOnly(t, "it is cut off itself", b, true)
			b.Group(0, LAN, NodeNetwork)
			c.Run(2 * time.Second)
			wantOnly(t, "the other is there again", a, false)
			wantOnly(t, "it is there again", b, false)
		}
	}
}

// A node that is cut off changes nothing, and all others consider only this node unreachable.
func TestCutOff(t *testing.T) {
	for _, seed := range seeds {
		c := probed(t, Config{Seed: seed, Nodes: 12, Loss: 0.01})
		cut := c.Speakers[int(seed)]
		cut.Group(-1, LAN, NodeNetwork)
		c.Run(30 * time.Second)
		for _, s := range c.Speakers {
			if s == cut {
				wantOnly(t, "cut off", s, true)
			} else {
				wantOnly(t, "one is cut off", s, false, cut)
			}
		}
		cut.Group(0, LAN, NodeNetwork)
		c.Run(2 * time.Second)
		for _, s := range c.Speakers {
			wantOnly(t, "connected", s, false)
		}
		for _, v := range c.Verdicts {
			if v.Of != cut.Name {
				t.Errorf("%+v", *v)
			}
		}
	}
}

// Pods are reached by the node network. If it is cut and the LAN is intact, the node is unreachable, and it considers
// all others unreachable. A cut LAN makes no node unreachable.
func TestOneNetworkCut(t *testing.T) {
	for _, seed := range seeds {
		c := probed(t, Config{Seed: seed, Nodes: 12, Loss: 0.01})
		cut := c.Speakers[int(seed)]
		others := slices.DeleteFunc(slices.Clone(c.Speakers), func(s *Speaker) bool { return s == cut })
		cut.Group(1, LAN)
		c.Run(5 * time.Second)
		c.wantNoOwner(t, "the LAN is cut")
		cut.Group(0, LAN)
		c.Run(2 * time.Second)
		cut.Group(1, NodeNetwork)
		c.Run(2 * time.Second)
		for _, s := range others {
			wantOnly(t, "node network cut", s, false, cut)
		}
		wantOnly(t, "node network cut", cut, false, others...)
		cut.Group(0, NodeNetwork)
		c.Run(2 * time.Second)
		for _, s := range c.Speakers {
			wantOnly(t, "connected", s, false)
		}
	}
}

// Halves and a minority. A node with the gateway on its side, or that reaches half of all nodes, leaves out the other
// side as soon as a dead node. Any other node changes nothing, neither then nor when the partition has healed.
func TestSides(t *testing.T) {
	for _, test := range []struct {
		name    string
		nodes   int  // on the side without the gateway
		gateway bool // the gateway answers on the other side
		// lone and main are set if the side leaves out the other one at once.
		lone, main bool
	}{
		{"halves, the gateway on one side", 6, true, true, true},
		{"halves without a gateway", 6, false, true, true},
		{"a minority without the gateway", 4, true, false, true},
		{"a minority and no gateway", 4, false, false, true},
		{"a majority without the gateway", 8, true, true, true},
	} {
		for _, seed := range seeds {
			t.Run(fmt.Sprint(test.name, ", seed ", seed), func(t *testing.T) {
				c := probed(t, Config{Seed: seed, Nodes: 12, Loss: 0.01})
				lone, main := c.Speakers[:test.nodes], c.Speakers[test.nodes:]
				c.Gateway.Power(test.gateway)
				c.split(lone, 9*time.Second)
				for _, s := range c.Speakers {
					wantOnly(t, "healed", s, false)
				}
				for _, v := range c.Verdicts {
					side := slices.Contains(lone, c.byName[v.Node])
					if side && !test.lone || !side && !test.main || v.Wrong || v.Back > 250*time.Millisecond {
						t.Errorf("%+v", *v)
					}
				}
				c.Verdicts = nil
				at := c.Now()
				for _, s := range lone {
					s.Group(1, LAN, NodeNetwork)
				}
				c.Run(9 * time.Second)
				c.wantSide(t, "9 s", lone, main, test.lone)
				c.wantSide(t, "9 s", main, lone, test.main)
				for _, v := range c.Verdicts {
					if took := v.At - at; took > c.config.Profile.Dead+decidedWithin {
						t.Errorf("%+v, after %v", *v, took)
					}
				}
				c.Run(20 * time.Second)
				c.wantSide(t, "29 s", lone, main, test.lone)
				c.wantSide(t, "29 s", main, lone, test.main)
			})
		}
	}
}

// split separates some nodes from all others, and the gateway, for a time.
func (c *Cluster) split(nodes []*Speaker, d time.Duration) {
	for _, s := range nodes {
		s.Group(1, LAN, NodeNetwork)
	}
	c.Run(d)
	for _, s := range nodes {
		s.Group(0, LAN, NodeNetwork)
	}
	c.Run(2 * time.Second)
}

// wantSide checks that each node of one side has left out the other side, or reports that it may be cut off.
func (c *Cluster) wantSide(t *testing.T, when string, side, other []*Speaker, decides bool) {
	t.Helper()
	for _, s := range side {
		if decides {
			wantOnly(t, when, s, false, other...)
		} else {
			wantOnly(t, when, s, true)
		}
	}
}

// A node whose port flaps is unreachable soon after each loss, and reachable as soon as the port is up.
func TestFlappingPort(t *testing.T) {
	for _, seed := range seeds {
		c := probed(t, Config{Seed: seed, Nodes: 12, Loss: 0.01})
		s := c.Speakers[int(seed)]
		for range 8 {
			c.Verdicts = nil
			at := c.Now()
			s.Group(-1, LAN, NodeNetwork)
			c.Run(time.Second)
			s.Group(0, LAN, NodeNetwork)
			c.Run(time.Second)
			if took := c.decided(at, s); len(took) != len(c.Speakers)-1 || took.Most() > c.config.Profile.Dead+decidedWithin {
				t.Errorf("seed %d: %d nodes decided, after %v at most", seed, len(took), took.Most())
			}
			for _, v := range c.Verdicts {
				if v.Of != s.Name || v.Until == 0 || v.Back > 250*time.Millisecond {
					t.Errorf("seed %d: %+v", seed, *v)
				}
			}
		}
	}
}

// A joined node is found when it dies; a node that was never received is not.
func TestJoinAndDie(t *testing.T) {
	c := probed(t, Config{Seed: 1, Nodes: 5})
	s := c.Join()
	c.Run(5 * time.Second)
	c.wantNoOwner(t, "one joins")
	s.PowerOff()
	c.Run(time.Second)
	if n := len(c.Verdicts); n != 5 {
		t.Errorf("%d of 5 have decided", n)
	}
	c.Speakers[0].Crash() // its next process has never received the joined node
	c.Run(time.Second)
	c.Speakers[0].Start()
	c.Run(10 * time.Second)
	wantOnly(t, "a new process", c.Speakers[0], false)
}
