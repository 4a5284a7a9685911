package member

import (
	"fmt"
	"time"
)

// CheckAttention compares Attentive, Next and Earliest with a scan of all interfaces and peers.
func (c *Core) CheckAttention() error {
	steady, frequent := c.scanned(), c.lastTick.Add(c.profile.tick())
	next := earlier(c.nextHeartbeat, later(frequent, steady))
	if got := c.Earliest(); got.After(next) {
		return fmt.Errorf("Earliest is %v after Next", got.Sub(next))
	}
	if got, want := c.Attentive(), !steady.After(c.lastTick); got != want {
		return fmt.Errorf("Attentive is %v, want %v", got, want)
	}
	if got := c.Next(); !got.Equal(next) {
		return fmt.Errorf("Next is off by %v", got.Sub(next))
	}
	return nil
}

// scanned is steadyUntil without its shortcuts.
func (c *Core) scanned() time.Time {
	var past time.Time
	if !c.begun || c.observer || c.fenced {
		return past
	}
	until := c.nextHeartbeat
	for i, f := range c.ifaces {
		switch {
		case i > 0 && !f.link:
		case f.isolated || f.cut:
			return past
		case f.ever && c.lastTick.Sub(f.last) < c.profile.Dead+3*c.profile.Interval:
			until = earlier(until, f.last.Add(c.profile.Dead/2))
		}
	}
	for _, p := range c.order {
		until = earlier(until, c.peerSteadyUntil(p))
	}
	return until
}
