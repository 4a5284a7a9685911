package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/test/rare"
)

// chaos injects faults of all kinds for a time, several at once, and then ends them.
func (c *Cluster) chaos(random *rand.Rand, faults int) {
	some := func() *Speaker { return c.Speakers[random.IntN(len(c.Speakers))] }
	for range faults {
		s, d := some(), time.Duration(random.Int64N(int64(4*time.Second)))
		switch random.IntN(9) {
		case 0:
			s.PowerOff()
			c.After(d, s.Start)
		case 1, 2:
			if s.power {
				s.Crash()
				c.After(d, func() {
					if s.power {
						s.Start()
					}
				})
			}
		case 3:
			if s.runs() {
				s.Pause(d)
			}
		case 4:
			if s.runs() {
				s.Suspend(d, 250*random.IntN(2))
			}
		case 5:
			s.Group(-1, LAN, NodeNetwork)
			c.After(d, func() { s.Group(0, LAN, NodeNetwork) })
		case 6:
			s.Group(1, random.IntN(2))
			c.After(d, func() { s.Group(0, LAN, NodeNetwork) })
		case 7:
			c.Gateway.Power(false)
			c.After(d, func() { c.Gateway.Power(true) })
		case 8:
			for _, s := range c.Speakers {
				if random.IntN(2) == 0 {
					s.Group(1, LAN, NodeNetwork)
					c.After(d, func() { s.Group(0, LAN, NodeNetwork) })
				}
			}
		}
		c.Run(time.Duration(random.Int64N(int64(2 * time.Second))))
	}
}

// Whatever fails, no reachable node is considered unreachable, and no Service is left without endpoints. In the end all
// nodes are reachable.
func TestChaos(t *testing.T) {
	for seed := range uint64(rare.Rounds(2, 4)) {
		random := rand.New(rand.NewPCG(seed, 5))
		c := forwardingCluster(t, Config{
			Seed: seed, Loss: 0.03, Busy: busy, OneNetwork: seed%2 == 0, Profile: []member.Profile{member.Standard, member.Fast}[seed/2%2],
		})
		c.chaos(random, 30)
		c.Run(10 * time.Second)
		for _, s := range c.Speakers {
			if !s.runs() {
				s.Start()
			}
		}
		c.Run(10 * time.Second)
		for _, s := range c.Speakers {
			if s.runs() {
				wantOnly(t, "in the end", s, false)
				wantServes(t, "in the end", s, nil)
			}
		}
		for _, v := range Mistaken(c.Verdicts) {
			t.Errorf("seed %d: %+v", seed, *v)
		}
		for _, e := range c.Empty {
			t.Errorf("seed %d: %+v", seed, e)
		}
		if len(c.Verdicts) < 50 {
			t.Errorf("seed %d: %d verdicts", seed, len(c.Verdicts))
		}
	}
}
