package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// report brings the owners into the statuses, as the speakers would.
func (s *simulation) report() {
	for name, nodes := range s.owners() {
		if vip := s.api.VIPs[name]; len(nodes) == 1 {
			vip.Holder = nodes[0]
			s.api.VIPs[name] = vip
		}
	}
	s.tell()
}

// leadBy relists every VirtualIP with the node first and the others as they were.
func (s *simulation) leadBy(node string) {
	for _, name := range slices.Sorted(maps.Keys(s.api.VIPs)) {
		others := slices.DeleteFunc(slices.Clone(s.api.VIPs[name].Nodes), func(n string) bool { return n == node })
		s.relist(name, slices.Insert(others, 0, node))
	}
}

// A move that was asked for happens, although the node that the list newly prefers was absent when the list came: it
// takes over once it is there, and somebody answers at any time. A list that was written by a status which does not
// name the holder asks for nothing, and moves nothing when the node returns.
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
		for until := s.now.Add(simDead + 3*claimWait); s.now.Before(until); {
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
			switch asks := s.api.VIPs[name].Holder == was; {
			case asks && nodes[0] != back.name:
				t.Errorf("seed %d: %s is on %v, and the list asks for %s", seed, name, nodes, back.name)
			case !asks && nodes[0] != was:
				t.Errorf("seed %d: %s moved from %s to %v unasked", seed, name, was, nodes)
			}
		}
	}
}

// Addresses are announced on two segments, and one node is cut off from one of them: what it holds goes to nodes that
// reach both, with somebody answering at any time, and nothing else moves, nor anything back when the node reaches
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
		for until := s.now.Add(simDead + partWait*defaultInterval + claimWait); s.now.Before(until); {
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
		// All but one are cut off, one after another, so that nobody can tell: whatever happens, each address keeps an
		// owner.
		for _, n := range s.nodes[1:] {
			n.cut = true
			s.run(2 * time.Second)
			s.wantOne(fmt.Sprintf("seed %d, %s is cut as well", seed, n.name))
		}
	}
}
