package plan

import (
	"time"

	"github.com/ironlb/ironlb/speaker/forwarding"
)

// Options are the operator's settings for the node.
type Options struct {
	// Node is the name of this node.
	Node string
	// BGP is set if this node runs BGP.
	BGP bool
	// Interval is the heartbeat interval of the speakers, which sets the timing of conflict resolution; 0 means 200 ms.
	Interval time.Duration
	forwarding.Options
}
