package direct

import (
	"maps"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// The tiers: to the node of the slot, and to the node that had the slot before.
const (
	first = iota
	second
	numTiers
)

// tierNames are the maps of virtual servers, and the prefixes of the names of spreads.
var tierNames = [numTiers]string{first: "first", second: "second"}

// toSpread is how packets of virtual servers reach the chain of a spread. They return if the slot has no element.
const toSpread = nftbatch.Jump

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
	// spare are spreads without slots and virtual servers, by class. The kernel knows them, so a change that uses one
	// consists of elements only.
	spare map[bool][]*spread
	// all are the spreads of a listing, which may have several with one content, or without virtual servers.
	all []*spread
}

func newTier(number int) tier {
	return tier{
		number: number, of: make(map[ipvs.Key]*spread), by: make(map[content]*spread), spare: make(map[bool][]*spread),
	}
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
			s = t.take(w, c)
		}
		s.refs++
		t.of[key] = s
		w.virtual(t.number, key, s, false)
	}
	return left
}

// take returns a spread with a content that none has.
func (t *tier) take(w writer, c content) *spread {
	var s *spread
	if spare := t.spare[c.byClient]; len(spare) > 0 {
		s = spare[len(spare)-1]
		t.spare[c.byClient] = spare[:len(spare)-1]
	} else {
		t.last++
		s = &spread{content: newContent(c.byClient), id: t.last}
		w.spread(t.number, s)
	}
	w.slots(t.number, s, &s.content, &c)
	s.content = c
	t.by[c] = s
	return s
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
		w.slots(t.number, s, &s.content, &c)
		t.drop(s)
		s.content = c
		t.by[c] = s
	}
}

// maxSpare is the number of spare spreads of a tier and class.
const maxSpare = 16

// collect makes spreads without a virtual server spare, or deletes them.
func (t *tier) collect(w writer, candidates []*spread) {
	for _, s := range candidates {
		if s.refs != 0 || t.isSpare(s) { // it may be a candidate twice
			continue
		}
		t.drop(s)
		if len(t.spare[s.byClient]) == maxSpare {
			s.refs = -1
			w.removeSpread(t.number, s)
			continue
		}
		empty := newContent(s.byClient)
		w.slots(t.number, s, &s.content, &empty)
		s.content = empty
		t.spare[s.byClient] = append(t.spare[s.byClient], s)
	}
}

func (t *tier) isSpare(s *spread) bool { return slices.Contains(t.spare[s.byClient], s) }

// drop makes the content of a spread available to no further virtual server.
func (t *tier) drop(s *spread) {
	if t.by[s.content] == s {
		delete(t.by, s.content)
	}
}
