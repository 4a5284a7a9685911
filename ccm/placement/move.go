package placement

import "cmp"

// Move is a unit that should be moved from the node that holds it to a better one.
type Move struct {
	Unit, From, To string
	Reason         Reason
}

// NextMove returns the next move, given the result of Place for the units. First come moves away from cordoned nodes,
// then those that increase the preference weight most, then those that even out the load most. It reports false if
// nothing is improved. Repeated moves terminate.
//
// A unit is moved only if its first node holds it and already led the previous list: the speakers would ignore a list
// that puts back the node that led it. A unit that a node has refused comes last, and is moved only away from a
// cordoned node: its Services may have endpoints on few nodes, which are not visible here.
func NextMove(units []Unit, lists []List, nodes []Node) (Move, bool) {
	ranks := make(map[string]rank, len(nodes))
	led := map[string]int{}
	draining := map[string]bool{}
	for _, n := range nodes {
		ranks[n.Name] = rankOf(n)
		draining[n.Name] = n.Cordoned
	}
	first := make(map[string]string, len(lists))
	for _, l := range lists {
		if len(l.Nodes) > 0 {
			first[l.Unit] = l.Nodes[0]
			led[l.Nodes[0]]++
		}
	}
	idle := len(units) // the number of units that the least loaded fit node leads
	for _, n := range nodes {
		if ranks[n.Name] == fit {
			idle = min(idle, led[n.Name])
		}
	}
	var best *step
	for i := range units {
		u := &units[i]
		from := first[u.Name]
		if from == "" || u.Owner != from || len(u.Previous) == 0 || u.Previous[0] != from {
			continue
		}
		drains := draining[from]
		if !drains && (!u.Movable || len(u.Refused) > 0 || u.Weights == nil && led[from]-idle < 2) {
			continue
		}
		if s := u.step(from, drains, led, ranks); s != nil && (best == nil || s.compare(best) < 0) {
			best = s
		}
	}
	if best == nil {
		return Move{}, false
	}
	return best.Move, true
}

// step is a move and its benefit.
type step struct {
	Move
	drains       bool
	refused      int // nodes
	weight, load int
}

// compare orders moves, the best first.
func (s *step) compare(t *step) int {
	if s.drains != t.drains {
		if s.drains {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(s.refused, t.refused), cmp.Compare(t.weight, s.weight), cmp.Compare(t.load, s.load), cmp.Compare(s.Unit, t.Unit))
}

// step returns the best move of the unit, nil if none improves the placement.
func (u *Unit) step(from string, drains bool, led map[string]int, ranks map[string]rank) *step {
	to := ""
	for _, n := range u.Eligible {
		r, known := ranks[n]
		if n == from || !known || r != fit || u.Refused[n] || u.Reached != nil && !u.Reached[n] ||
			!drains && u.Targets != nil && !u.Targets[n] {
			continue
		}
		if to == "" || cmp.Or(u.prefer(n, to), cmp.Compare(led[n], led[to]), u.byHash(n, to)) < 0 {
			to = n
		}
	}
	if to == "" {
		return nil
	}
	s := &step{Move{u.Name, from, to, Rebalanced}, drains, len(u.Refused), u.weight(to) - u.weight(from), led[from] - led[to]}
	if drains {
		s.Reason = Drained
		return s
	}
	if s.weight > 0 || s.weight == 0 && s.load > 1 {
		return s
	}
	return nil
}
