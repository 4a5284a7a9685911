package sim

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/test/rare"
)

// small returns the cluster that the tests start with: converged, with stable lists.
func small(t *testing.T, config Config) *Cluster {
	t.Helper()
	config.Nodes, config.VIPs, config.Profile = 20, 200, member.Standard
	c := New(config)
	if _, ok := c.Until(3*time.Second, c.Owners.One); !ok {
		none, several := c.Owners.Each()
		t.Fatalf("seed %d: 3 s after the start no node answers for %d addresses, several nodes for %d", config.Seed, none, several)
	}
	c.Run(3 * time.Second)
	if least, most := c.Owners.Balance(); least != 10 || most != 10 || len(c.Owners.Moves) != config.VIPs || len(c.Owners.Doubled) > 0 {
		t.Fatalf("seed %d: at the start %d to %d addresses per node, %d claims, %d by two at once", config.Seed, least, most, len(c.Owners.Moves), len(c.Owners.Doubled))
	}
	c.reset()
	return c
}

func (c *Cluster) reset() { c.Owners.Mark(); c.Deaths = nil }

// wantOne checks that each VirtualIP has one owner within a time.
func (c *Cluster) wantOne(t *testing.T, when string, within time.Duration) {
	t.Helper()
	if _, ok := c.Until(within, c.Owners.One); !ok {
		vacant, several := c.Owners.Each()
		t.Fatalf("seed %d, %s, after %v: no node answers for %d addresses, several nodes for %d", c.config.Seed, when, within, vacant, several)
	}
}

// wantStill advances the time. No VirtualIP may move, and no node may be wrongly considered dead.
func (c *Cluster) wantStill(t *testing.T, when string, d time.Duration) {
	t.Helper()
	c.reset()
	c.Run(d)
	if n := Wrong(c.Deaths); n > 0 || len(c.Owners.Moves)+len(c.Owners.Vacant)+len(c.Owners.Doubled) > 0 {
		t.Fatalf("seed %d, %s: %d nodes wrongly taken for dead (%+v), moved: %v, unanswered: %v, by two: %v",
			c.config.Seed, when, n, c.Deaths, c.Owners.Moves, c.Owners.Vacant, c.Owners.Doubled)
	}
}

var seeds = []uint64{1, 2}[:rare.Rounds(1, 2)]

// Many nodes take over from a node that loses power, within 0.6 s. Nothing moves when it returns, nor with loss.
func TestPowerOff(t *testing.T) {
	for _, seed := range seeds {
		c := small(t, Config{Seed: seed, Loss: 0.01})
		c.wantStill(t, "with 1 % loss", 4*time.Second)
		dead := c.Speakers[int(seed)*5]
		held := len(c.Owners.Of(dead))
		dead.PowerOff()
		c.wantOne(t, "a node is off", 600*time.Millisecond)
		c.Run(2 * time.Second)
		if least, most := c.Owners.Balance(); most-least > 1 || len(c.Owners.Moves) != held || len(c.Owners.Doubled) > 0 || Wrong(c.Deaths) > 0 {
			t.Fatalf("seed %d: after a death %d to %d addresses per node, %d of %d moved, %d by two at once, %d wrong deaths",
				seed, least, most, len(c.Owners.Moves), held, len(c.Owners.Doubled), Wrong(c.Deaths))
		}
		dead.Start()
		c.wantStill(t, "it returns", 8*time.Second)
	}
}

// A stopping speaker hands over all its VirtualIPs without an interruption. Nothing moves to a joining node.
func TestLeaveAndJoin(t *testing.T) {
	for _, seed := range seeds {
		c := small(t, Config{Seed: seed, Loss: 0.01})
		stopping := c.Speakers[int(seed)*5]
		held := c.Owners.Of(stopping)
		stopping.Leave()
		took, ok := c.Until(3*time.Second, func() bool { return stopping.core == nil })
		if most := Long(c.Owners.Doubled).Most(); !ok || len(c.Owners.Vacant) > 0 || len(c.Owners.Moves) != len(held) || most > 300*time.Millisecond {
			t.Fatalf("seed %d: stopping took %v (ended: %v), %d of %d moved, unanswered: %v, by two for up to %v",
				seed, took, ok, len(c.Owners.Moves), len(held), c.Owners.Vacant, most)
		}
		c.Run(3 * time.Second)
		if least, most := c.Owners.Balance(); most-least > 1 {
			t.Errorf("seed %d: after a node has left, the others hold %d to %d", seed, least, most)
		}
		c.reset()
		c.Join()
		c.wantStill(t, "a node joins", 8*time.Second)
	}
}

// Both sides of a partition own all VirtualIPs; one owner is left within a second after it has healed.
func TestPartition(t *testing.T) {
	for _, seed := range seeds {
		c := small(t, Config{Seed: seed})
		for _, s := range c.Speakers[:7] {
			s.Group(1, LAN, NodeNetwork)
		}
		c.Run(3 * time.Second)
		if none, several := c.Owners.Each(); none > 0 || several != len(c.vips) {
			t.Fatalf("seed %d: in a partition no node answers for %d addresses, both sides for %d of %d", seed, none, several, len(c.vips))
		}
		for _, s := range c.Speakers {
			s.Group(0, LAN, NodeNetwork)
		}
		c.wantOne(t, "healed", time.Second)
		c.wantStill(t, "later", 3*time.Second)
	}
}

// The LAN is partitioned, the API server is reachable for all: both sides answer, and the reporter of each status soon
// settles, whatever the list is.
func TestSplitWithAPI(t *testing.T) {
	for _, seed := range seeds {
		c := small(t, Config{Seed: seed})
		for _, s := range c.Speakers[:7] {
			s.Group(1, LAN)
		}
		c.Run(10 * time.Second)
		if none, several := c.Owners.Each(); none > 0 || several != len(c.vips) {
			t.Fatalf("seed %d: no node answers for %d addresses, both sides for %d of %d", seed, none, several, len(c.vips))
		}
		written := c.api.Written
		c.Run(20 * time.Second)
		if n, m := c.api.Written.Minus(written).VirtualIPs, c.api.Written.Minus(written).Lists; n > 0 || m > 0 {
			t.Errorf("seed %d: %d statuses and %d lists written in the later 20 s", seed, n, m)
		}
		for _, s := range c.Speakers {
			s.Group(0, LAN)
		}
		c.wantOne(t, "healed", time.Second)
		c.wantStill(t, "later", 5*time.Second)
	}
}

// A node whose LAN is cut, with the node network intact, is replaced. So is a node with a stalled process, which does
// not answer when it resumes.
func TestCutAndPaused(t *testing.T) {
	for _, seed := range seeds {
		c := small(t, Config{Seed: seed})
		cut, paused := c.Speakers[int(seed)*2], c.Speakers[int(seed)*3+7]
		cut.Group(-1, LAN)
		c.wantOne(t, "the LAN is cut", 600*time.Millisecond)
		c.Run(time.Second)
		cut.Group(0, LAN)
		c.wantOne(t, "the LAN is connected", time.Second)
		c.wantStill(t, "later", 3*time.Second)
		paused.Pause(3 * time.Second)
		c.wantOne(t, "a process stalls", 600*time.Millisecond)
		c.Run(5 * time.Second)
		if len(c.Owners.Doubled) > 0 {
			t.Fatalf("seed %d: two nodes answered after a pause: %v", seed, c.Owners.Doubled)
		}
		c.wantStill(t, "it went on", 3*time.Second)
	}
}

// held returns the VirtualIPs that each node owns.
func (c *Cluster) held() map[*Speaker][]int {
	held := map[*Speaker][]int{}
	for _, s := range c.Speakers {
		held[s] = c.Owners.Of(s)
	}
	return held
}

// A virtual machine suspended together with its clock, for 10 s or for just longer than its replacement takes, is no
// longer an owner when it resumes, with two nodes and with many.
func TestSuspended(t *testing.T) {
	for seed := range uint64(rare.Rounds(2, 4)) {
		for _, nodes := range []int{2, 20} {
			c := New(Config{Seed: seed, Nodes: nodes, VIPs: 40, Profile: member.Standard})
			c.wantOne(t, "the start", 3*time.Second)
			c.Run(10 * time.Second)
			c.api.down = seed%2 == 1 // then the list does not follow the new owner
			for i, length := range []time.Duration{10 * time.Second, 600 * time.Millisecond, 10 * time.Second} {
				suspended := c.Speakers[int(seed)%nodes]
				if len(c.Owners.Of(suspended)) == 0 {
					suspended = c.Speakers[int(seed+1)%nodes]
				}
				suspended.Suspend(length, 250*(i%2)) // without a queue it sends before it has read anything
				c.wantOne(t, "it is suspended", 600*time.Millisecond)
				c.Run(length - 600*time.Millisecond)
				before := c.held()
				before[suspended] = nil
				c.reset()
				c.Run(2 * time.Second)
				if most := Long(c.Owners.Doubled).Most(); most > 110*time.Millisecond || len(c.Owners.Vacant) > 0 {
					t.Fatalf("seed %d, %d nodes, suspended for %v: two answered for %v after it, unanswered: %v",
						seed, nodes, length, most, c.Owners.Vacant)
				}
				if after := c.held(); !maps.EqualFunc(before, after, slices.Equal) {
					t.Fatalf("seed %d, %d nodes, suspended for %v: addresses moved back: %v, before %v",
						seed, nodes, length, after, before)
				}
				c.wantStill(t, "it went on", 10*time.Second)
			}
		}
	}
}

// A node with an asymmetric link sends but receives from no node, as with a wrong packet filter, while other hosts
// answer it. It counts as dead for nodes that receive one another: the statuses report these as owners, and it yields.
func TestAsymmetric(t *testing.T) {
	for seed := range uint64(rare.Rounds(2, 4)) { // in half of them the node network is the first to be received again
		c := small(t, Config{Seed: seed})
		asymmetric := c.Speakers[int(seed)*5]
		asymmetric.SetAsymmetric(true)
		c.Run(600 * time.Millisecond) // it considers the others dead
		c.wantOne(t, "a node does not receive", 1500*time.Millisecond)
		c.wantStill(t, "it still does not receive", 10*time.Second)
		if n := len(c.Owners.Of(asymmetric)); n != 0 {
			t.Errorf("seed %d: the node that does not receive owns %d addresses", seed, n)
		}
		asymmetric.SetAsymmetric(false)
		c.wantStill(t, "it receives again", 3*time.Second)
	}
}

// Two nodes with an asymmetric link between them: one answers, even while the API server is unreachable.
func TestOneWayOfTwo(t *testing.T) {
	for seed := range uint64(rare.Rounds(4, 20)) { // the asymmetric node's state of the other's claims is old when it receives again
		c := New(Config{Seed: seed, Nodes: 2, VIPs: 40, Profile: member.Standard})
		c.wantOne(t, "the start", 3*time.Second)
		c.Run(3 * time.Second)
		c.api.down = true
		c.Speakers[1].SetAsymmetric(true)
		c.Run(time.Second)
		c.wantOne(t, "one does not receive", 4*time.Second)
		c.wantStill(t, "it still does not receive", 5*time.Second)
		c.Speakers[1].SetAsymmetric(false)
		c.wantStill(t, "it receives again", 3*time.Second)
	}
}

// The same seed gives the same run.
func TestSameSeed(t *testing.T) {
	run := func(seed uint64) ([]Move, []Death, []Verdict, Traffic) {
		c := New(Config{
			Seed: seed, Nodes: 8, VIPs: 40, Profile: member.Fast, Loss: 0.05, Busy: busy,
			Bursts: Bursts{Every: time.Second, Least: 50 * time.Millisecond, Most: 400 * time.Millisecond},
		})
		c.Run(2 * time.Second)
		c.Speakers[3].PowerOff()
		c.Run(3 * time.Second)
		var verdicts []Verdict
		for _, v := range c.Verdicts {
			verdicts = append(verdicts, *v)
		}
		return c.Owners.Moves, c.Deaths, verdicts, c.Speakers[0].Received
	}
	moves, deaths, verdicts, traffic := run(7)
	again, deaths2, verdicts2, traffic2 := run(7)
	if !slices.Equal(moves, again) || !slices.Equal(deaths, deaths2) || traffic != traffic2 {
		t.Error("two runs of one seed differ")
	}
	if len(verdicts) == 0 || !slices.Equal(verdicts, verdicts2) {
		t.Errorf("two runs of one seed find nodes unreachable: %v and %v", verdicts, verdicts2)
	}
	if _, _, _, other := run(8); other == traffic {
		t.Error("two seeds give the same traffic")
	}
}
