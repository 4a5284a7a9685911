package routes

import (
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// decommission is the progress of decommissioning, during which routers must first find another route (RFC 8326).
type decommission struct {
	state decommissionState
	until time.Time // while draining
}

type decommissionState uint8

const (
	staying decommissionState = iota
	draining
	gone
)

// drainTime is how long a decommissioning node announces its routes with GRACEFUL_SHUTDOWN.
const drainTime = 5 * time.Second

// update updates the state and reports whether it changed.
func (g *decommission) update(n view.Node, now time.Time) bool {
	before := g.state
	switch decommissioning := n.Excluded || n.BeingDeleted; {
	case !decommissioning:
		*g = decommission{}
	case g.state == staying:
		*g = decommission{state: draining, until: now.Add(drainTime)}
	case g.state == draining && !now.Before(g.until):
		*g = decommission{state: gone}
	}
	return g.state != before
}
