package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
)

// forwardingCluster is a cluster that forwards ClusterIPs to endpoints on all of its nodes.
func forwardingCluster(t *testing.T, config Config) *Cluster {
	t.Helper()
	config.Nodes, config.ClusterIPs = 12, 60
	c := probed(t, config)
	for _, s := range c.Speakers {
		wantServes(t, "at the start", s, nil)
	}
	return c
}

// wantServes checks that a node sends new connections to every endpoint outside the given nodes, and to all endpoints
// if there are no others.
func wantServes(t *testing.T, when string, s *Speaker, without []*Speaker) {
	t.Helper()
	for i := range s.cluster.api.clusterIPs {
		svc := &s.cluster.api.clusterIPs[i]
		var all, want []string
		for _, e := range svc.slice.Endpoints {
			all = append(all, e.Node)
			if !slices.Contains(without, s.cluster.byName[e.Node]) {
				want = append(want, e.Node)
			}
		}
		if len(want) == 0 {
			want = all
		}
		slices.Sort(want)
		if got := s.takers(svc); !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("%s: %s sends new connections of %v to %v, want %v", when, s.Name, svc.at(), got, slices.Compact(want))
		}
	}
}

// A partition into halves: each side serves with the endpoints it reaches, and no Service is left without endpoints.
func TestHalvesServe(t *testing.T) {
	for _, gateway := range []bool{true, false} {
		for _, seed := range seeds {
			c := forwardingCluster(t, Config{Seed: seed, Loss: 0.01})
			lone, main := c.Speakers[:6], c.Speakers[6:]
			c.Gateway.Power(gateway)
			for _, s := range lone {
				s.Group(1, LAN, NodeNetwork)
			}
			wantSides := func(when string, lonely, other []*Speaker) {
				t.Helper()
				for _, s := range lone {
					wantServes(t, when, s, lonely)
				}
				for _, s := range main {
					wantServes(t, when, s, other)
				}
			}
			c.Run(time.Second)
			wantSides("1 s", main, lone)
			c.Run(12 * time.Second)
			wantSides("13 s", main, lone)
			for _, s := range lone {
				s.Group(0, LAN, NodeNetwork)
			}
			c.Run(time.Second)
			wantSides("healed", nil, nil)
			for _, e := range c.Empty {
				t.Errorf("seed %d: %+v", seed, e)
			}
		}
	}
}

// Whatever fails, no Service is left without endpoints for new connections on any node.
func TestNeverEmpty(t *testing.T) {
	for _, seed := range seeds {
		c := forwardingCluster(t, Config{Seed: seed, Loss: 0.05, Busy: busy, Profile: member.Fast})
		off := c.Speakers[:0:0]
		for i, s := range c.Speakers[1:] { // one after the other, until one is left
			s.PowerOff()
			off = append(off, s)
			c.Run(4 * time.Second)
			if took := c.decided(0, s); i < 4 && len(took) == 0 {
				t.Errorf("seed %d: no node has found %s unreachable", seed, s.Name)
			}
		}
		c.Run(20 * time.Second)
		wantServes(t, "the last node", c.Speakers[0], off)
		for _, s := range off {
			s.Start()
		}
		c.Run(10 * time.Second)
		for _, s := range c.Speakers {
			if s.Healthy() {
				wantServes(t, "all are back", s, nil)
			}
		}
		for _, e := range c.Empty {
			t.Errorf("seed %d: %+v", seed, e)
		}
	}
}
