package direct

import (
	"maps"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// The tiers: to the node of the slot, and to the node that had the slot before.
const (
	first = iota
	second
	numTiers
)

// tierNames are the maps of virtual servers, and the prefixes of the names of spreads.
var tierNames = [numTiers]string{first: "first", second: "second"}

// verdicts are how packets of virtual servers reach the chain of a spread. Of a second one they return if the slot has
// no element.
var verdicts = [numTiers]string{first: "goto", second: "jump"}

// spread is a map {slot : gateway} and the chain with its rule. Virtual servers with the same content share it.
type spread struct {
	content
	id   int
	refs int
}

// tier is the known state of one tier in a table.
type tier struct {
	number int
	of     map[ipvs.Key]*spread
	by     map[content]*spread
	// last is the greatest id so far.
	last int
	// all are the spreads of a listing, which may have several with one content, or without virtual servers.
	all []*spread
}

func newTier(number int) tier {
	return tier{number: number, of: make(map[ipvs.Key]*spread), by: make(map[content]*spread)}
}

// edit changes the virtual servers in want to their content, which may be empty. The state is that after the
// transaction. It returns the spreads to collect.
func (t *tier) edit(w writer, want map[ipvs.Key]content) (left []*spread) {
	keys := slices.SortedFunc(maps.Keys(want), ipvs.Key.Compare)
	t.editInPlace(w, keys, want)
	for _, key := range keys {
		have, c := t.of[key], want[key]
		switch {
		case have != nil && have.content == c, have == nil && c.empty():
			continue
		case have != nil:
			w.virtual(t.number, key, have, true)
			delete(t.of, key)
			have.refs--
			left = append(left, have)
		}
		if c.empty() {
			continue
		}
		s := t.by[c]
		if s == nil {
			t.last++
			s = &spread{content: c, id: t.last}
			t.by[c] = s
			w.spread(t.number, s)
		}
		s.refs++
		t.of[key] = s
		w.virtual(t.number, key, s, false)
	}
	return left
}

// editInPlace edits the spreads whose virtual servers all change to the same new content.
func (t *tier) editInPlace(w writer, keys []ipvs.Key, want map[ipvs.Key]content) {
	moving := make(map[*spread]int)
	for _, key := range keys {
		if s := t.of[key]; s != nil {
			moving[s]++
		}
	}
	target := make(map[*spread]content)
	for _, key := range keys {
		s, c := t.of[key], want[key]
		if s == nil {
			continue
		}
		if earlier, seen := target[s]; seen && earlier != c {
			moving[s] = 0 // not all to the same
		}
		target[s] = c
	}
	for _, key := range keys {
		s := t.of[key]
		if s == nil || moving[s] != s.refs {
			continue
		}
		c := target[s]
		if s.content == c || c.empty() || c.byClient != s.byClient || t.by[c] != nil {
			continue
		}
		w.slots(t.number, s, s.content, c)
		t.drop(s)
		s.content = c
		t.by[c] = s
	}
}

// collect deletes the spreads that have no virtual server.
func (t *tier) collect(w writer, candidates []*spread) {
	for _, s := range candidates {
		if s.refs != 0 {
			continue
		}
		s.refs = -1 // it may be a candidate twice
		t.drop(s)
		w.removeSpread(t.number, s)
	}
}

// drop makes the content of a spread available to no further virtual server.
func (t *tier) drop(s *spread) {
	if t.by[s.content] == s {
		delete(t.by, s.content)
	}
}
