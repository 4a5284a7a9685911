package member

import (
	"fmt"
	"time"
)

// Profile is how fast a silent node is noticed. Every datagram carries its sender's, so nodes with different ones understand
// one another: a node is dead after its own dead time.
type Profile struct {
	Name string
	// Interval is how often a node speaks; Dead is the silence after which it is dead.
	Interval, Dead time.Duration
}

// The profiles. docs/design/liveness.md has the measurements behind the numbers.
var (
	Standard = Profile{Name: "standard", Interval: 100 * time.Millisecond, Dead: 450 * time.Millisecond}
	Fast     = Profile{Name: "fast", Interval: 60 * time.Millisecond, Dead: 300 * time.Millisecond}
	Slow     = Profile{Name: "slow", Interval: time.Second, Dead: 3500 * time.Millisecond}
)

// ProfileNamed returns a profile by its name in the configuration.
func ProfileNamed(name string) (Profile, error) {
	for _, p := range []Profile{Standard, Fast, Slow} {
		if p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fmt.Errorf("liveness profile %q is unknown: give standard, fast or slow", name)
}

const (
	// turnsPerInterval is how often the loop turns in one interval, so that a death is noticed that much later at most.
	turnsPerInterval = 4
	// observeAtMost ends the observer phase though a node that is heard has not told all its claims.
	observeAtMost = 3 * time.Second
	// unstretched is up to how many other nodes the interval holds; twice as many double it, so that a node never reads
	// more than some thousand datagrams per second (wire.md 1.3).
	unstretched = 200
	// helpers is how many others are asked about a silent node.
	helpers = 3
)

// stretched returns the profile among a number of other nodes.
func (p Profile) stretched(peers int) Profile {
	by := time.Duration(1 + max(0, peers-1)/unstretched)
	p.Interval, p.Dead = p.Interval*by, p.Dead*by
	return p
}

func (p Profile) turn() time.Duration { return p.Interval / turnsPerInterval }

// fence is the gap between two turns of the loop after which this node no longer trusts what it knew: the others, who heard
// its last beat up to an interval before the gap, may be about to take over.
func (p Profile) fence() time.Duration { return p.Dead - p.Interval - p.Interval/2 }
