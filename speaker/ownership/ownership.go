package ownership

import (
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// Timeouts of the ownership election (docs/design/failover.md).
const (
	// ClaimWait is how long a candidate waits for each one before it in rank, and an owner for its successor.
	ClaimWait = time.Second
	// AsymmetricWait is how long an owner waits for another owner to receive it (a port may lose everything for a moment).
	AsymmetricWait = 3 * time.Second
	// PartWait is the number of intervals of isolation on one of several interfaces after which a node hands over. It
	// exceeds the time until an interface counts after its carrier returned: its port starts to forward, the first
	// heartbeat arrives, and a dead time of listening passes.
	PartWait = 15
	// contest is the number of intervals after which an owner with the older list yields.
	contest = 3
	// DefaultInterval is the heartbeat interval of a Planner without one, for tests. The programs pass that of the
	// profile.
	DefaultInterval = 200 * time.Millisecond
	// unlisted is the rank of a node outside the list.
	unlisted = 1<<16 - 1
)

// noReason is the absence of a blocker and of a release reason.
const noReason view.Reason = ""

// ownership is the ownership state of a VirtualIP between two decisions.
type ownership struct {
	held bool
	move
	handover
	faults
	// probe is set if no node is known to have answered. A claim is no proof: its probe may have found a conflict.
	probe bool
	// reported is set once the status names this node.
	reported bool
	// used is set once the status has named an owner since its Service was assigned.
	used bool
	// last is the other node last observed as the owner; empty is since when there is no owner.
	last  string
	empty time.Time
}

// move is the last move of a VirtualIP to or from this node.
type move struct {
	// moved, at and from are its reason, its time and the previous owner. vacant is since when there was no owner then.
	moved  view.Reason
	at     time.Time
	from   string
	vacant time.Time
	// cause is why a lost owner answers no more.
	cause view.Reason
}

// handover is the progress of an owner that asks others to take over.
type handover struct {
	// before are the nodes that rank before this one in the list of its ownership, and so are not asked to take over.
	before []string
	// named is the generation of the last list while the status named this node, 0 if it has not.
	named int64
	// successor was asked to take over at asked, after those in tried did not.
	successor string
	asked     time.Time
	tried     []string
}

// faults are the observed faults of the network, and since when.
type faults struct {
	// contested is since when an owner with a newer list is observed.
	contested time.Time
	// asymmetricSince is since when an owner is observed that does not receive this node. barred is an unreachable node
	// that answers after all.
	asymmetricSince time.Time
	barred          string
	// parted is since when this node is isolated on one of several interfaces.
	parted time.Time
	// rivals is set while another node claims ownership, too; epoch counts how often that ended.
	rivals bool
	epoch  int
}

// since keeps the time since when a condition holds.
func since(at *time.Time, is bool, now time.Time) {
	if !is {
		*at = time.Time{}
	} else if at.IsZero() {
		*at = now
	}
}
