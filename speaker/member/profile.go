package member

import (
	"fmt"
	"time"
)

// Profile is how fast a silent node is detected. Every datagram carries the profile of its sender, so nodes with
// different profiles interoperate: a node is dead after its own dead time.
type Profile struct {
	Name string
	// Interval is the interval between heartbeats; Dead is the silence after which a node is dead.
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
	// ticksPerInterval is the number of ticks per interval while a node is silent, so a death is detected at most one
	// tick late.
	ticksPerInterval = 4
	// maxObserverTime ends the observer phase even if a node that is received has not sent all its claims.
	maxObserverTime = 3 * time.Second
	// unstretched is the number of other nodes that the interval suits. With more it grows in proportion, so that a node
	// never reads more than a few thousand datagrams per second.
	unstretched = 200
	// helpers is how many other nodes receive a relay request about a silent one.
	helpers = 3
)

// Stretched returns the profile for a number of other nodes.
func (p Profile) Stretched(others int) Profile {
	if others > unstretched {
		stretched := func(d time.Duration) time.Duration {
			return (d * time.Duration(others) / unstretched).Truncate(time.Millisecond)
		}
		p.Interval, p.Dead = stretched(p.Interval), stretched(p.Dead)
	}
	return p
}

func (p Profile) tick() time.Duration { return p.Interval / ticksPerInterval }

// fence is the age of this node's last heartbeat after which its state is outdated: the others, which received that one
// or an earlier one last, may be about to take over.
func (p Profile) fence() time.Duration { return p.Dead - p.Interval + p.tick() }
