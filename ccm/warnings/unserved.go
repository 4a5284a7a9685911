package warnings

import (
	"maps"
	"net/netip"
	"sync"

	"github.com/ironlb/ironlb/ccm/condition"
)

// Unserved are the problems of addresses that no node serves by BGP. The BGP controller sets them.
type Unserved struct {
	mu       sync.Mutex
	problems map[netip.Addr]condition.Problem
	awaits   bool
	changed  func()
}

// NewUnserved returns none.
func NewUnserved() *Unserved { return &Unserved{changed: func() {}} }

// Expect has the publisher of warnings wait for the first Set.
func (u *Unserved) Expect() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.awaits = true
}

// Set replaces all problems.
func (u *Unserved) Set(problems map[netip.Addr]condition.Problem) {
	u.mu.Lock()
	same, changed := maps.Equal(u.problems, problems), u.changed
	u.problems, u.awaits = problems, false
	u.mu.Unlock()
	if !same {
		changed()
	}
}

// onChange sets the function that is called when a problem changed. It must not block.
func (u *Unserved) onChange(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changed = f
}

// known reports whether the first Set has come, if one is expected.
func (u *Unserved) known() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.awaits
}

// of returns the problem of an address.
func (u *Unserved) of(addr netip.Addr) (condition.Problem, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p, is := u.problems[addr]
	return p, is
}
