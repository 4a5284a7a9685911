package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/ownership"
)

// report writes the owners into the statuses, as the speakers would.
func (s *simulation) report() {
	for name, nodes := range s.owners() {
		if vip := s.api.VIPs[name]; len(nodes) == 1 {
			vip.ReportedOwner = nodes[0]
			s.api.VIPs[name] = vip
		}
	}
	s.publish()
}

// leadBy puts a node first in every list and keeps the order of the others.
func (s *simulation) leadBy(node string) {
	for _, name := range slices.Sorted(maps.Keys(s.api.VIPs)) {
		others := slices.DeleteFunc(slices.Clone(s.api.VIPs[name].Nodes), func(n string) bool { return n == node })
		s.relist(name, slices.Insert(others, 0, node))
	}
}

// A requested move happens even if the newly preferred node was absent when the list was written: it takes over once it
// is present, and there is always an owner. A list written while the status did not name the owner requests nothing,
// and moves nothing when the node returns.
func TestClusterMovesWhenTheNodeReturns(t *testing.T) {
	for seed := range uint64(24) {
		s := newSimulation(t, seed, 3+int(seed%3), 6)
		s.run(s.bound())
		s.wantOne("at the start")
		s.report()
		back := one(s.r, s.nodes...)
		back.up = false
		s.run(simDead + 2*time.Second)
		s.wantOne("after the death")
		if seed%2 == 0 {
			s.report()
			s.run(simTick)
		}
		held := s.owners()
		s.leadBy(back.name)
		s.run(time.Duration(s.r.IntN(5000)) * time.Millisecond)
		back.start()
		for until := s.now.Add(simDead + 3*ownership.ClaimWait); s.now.Before(until); {
			s.run(simTick)
			for name, nodes := range s.owners() {
				if len(nodes) == 0 || len(nodes) > 2 {
					t.Fatalf("seed %d: %v answer for %s", seed, nodes, name)
				}
			}
		}
		s.wantOne(fmt.Sprintf("seed %d, after the return", seed))
		for name, nodes := range s.owners() {
			was := held[name][0]
			switch asks := s.api.VIPs[name].ReportedOwner == was; {
			case asks && nodes[0] != back.name:
				t.Errorf("seed %d: %s is on %v, and the list asks for %s", seed, name, nodes, back.name)
			case !asks && nodes[0] != was:
				t.Errorf("seed %d: %s moved from %s to %v unasked", seed, name, was, nodes)
			}
		}
	}
}

// Addresses are announced on two segments, and one node is cut off from one of them. Nodes that reach both segments
// take over its VirtualIPs, with an owner at any time. Nothing else moves, and nothing moves back when the node reaches
// both again.
func TestClusterLosesOneSegment(t *testing.T) {
	for seed := range uint64(24) {
		s := newSimulation(t, seed, 3+int(seed%3), 6)
		s.second = true
		for _, n := range s.nodes {
			n.start()
		}
		s.run(s.bound())
		s.wantOne("at the start")
		before := s.owners()
		lost := one(s.r, s.nodes...)
		lost.cut = true
		for until := s.now.Add(simDead + ownership.PartWait*ownership.DefaultInterval + ownership.ClaimWait); s.now.Before(until); {
			s.run(simTick)
			for name, nodes := range s.owners() {
				if len(nodes) == 0 || len(nodes) > 2 {
					t.Fatalf("seed %d: %v answer for %s", seed, nodes, name)
				}
			}
		}
		s.wantOne(fmt.Sprintf("seed %d, cut", seed))
		after := s.owners()
		for name, nodes := range after {
			was := before[name][0]
			if nodes[0] == lost.name {
				t.Errorf("seed %d: %s does not reach one segment and keeps %s", seed, lost.name, name)
			} else if was != lost.name && nodes[0] != was {
				t.Errorf("seed %d: %s moved from %s to %s without need", seed, name, was, nodes[0])
			}
		}
		lost.cut = false
		s.run(5 * time.Second)
		if now := s.owners(); !maps.EqualFunc(after, now, slices.Equal) {
			t.Errorf("seed %d: owners %v, after the return %v", seed, after, now)
		}
		// All nodes but one are cut off, one after another, so that no node can determine which side failed: each
		// address still keeps an owner.
		for _, n := range s.nodes[1:] {
			n.cut = true
			s.run(2 * time.Second)
			s.wantOne(fmt.Sprintf("seed %d, %s is cut as well", seed, n.name))
		}
	}
}
