package placement

import (
	"maps"
	"slices"
	"strings"
	"unsafe"
)

// nodeSet is a set of known nodes. Two sets with the same nodes are the same pointer.
type nodeSet struct {
	names []string // sorted
	has   map[string]bool
	seen  map[string]int // by holds: the last round that found the node
	round int
}

// nodeSets reads each list of names once: thousands of units share the same few.
type nodeSets struct {
	known   map[string]struct{}
	bySlice map[sliceKey]*nodeSet
	byNames map[string]*nodeSet
}

// sliceKey identifies a slice that does not change while the key is kept.
type sliceKey struct {
	data *string
	len  int
}

func keyOf(names []string) sliceKey { return sliceKey{unsafe.SliceData(names), len(names)} }

// renew returns sets of these nodes. It keeps the existing ones as long as the names are the same.
func (s *nodeSets) renew(nodes map[string]rank) *nodeSets {
	if s != nil && len(s.known) == len(nodes) {
		same := true
		for name := range nodes {
			if _, ok := s.known[name]; !ok {
				same = false
				break
			}
		}
		if same {
			clear(s.bySlice)
			return s
		}
	}
	known := make(map[string]struct{}, len(nodes))
	for name := range maps.Keys(nodes) {
		known[name] = struct{}{}
	}
	return &nodeSets{known: known, bySlice: map[sliceKey]*nodeSet{}, byNames: map[string]*nodeSet{}}
}

// of returns the set of the names that are known nodes.
func (s *nodeSets) of(names []string) *nodeSet {
	key := keyOf(names)
	if set := s.bySlice[key]; set != nil {
		return set
	}
	var in []string
	for _, n := range names {
		if _, ok := s.known[n]; ok {
			in = append(in, n)
		}
	}
	slices.Sort(in)
	in = slices.Compact(in)
	text := strings.Join(in, "\x00")
	set := s.byNames[text]
	if set == nil {
		set = &nodeSet{names: in, has: make(map[string]bool, len(in)), seen: make(map[string]int, len(in))}
		for _, n := range in {
			set.has[n] = true
		}
		s.byNames[text] = set
	}
	s.bySlice[key] = set
	return set
}

// holds reports whether all the names are in the set, each at most once.
func (s *nodeSet) holds(names []string) bool {
	s.round++
	for _, n := range names {
		if !s.has[n] || s.seen[n] == s.round {
			return false
		}
		s.seen[n] = s.round
	}
	return true
}
