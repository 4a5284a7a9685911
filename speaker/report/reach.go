package report

import "time"

// settledAfter is how long after a node becomes unreachable its liveness counts as settled, unless the dead time is
// longer. In a large cluster its kernel is found silent before the heartbeats that other nodes received last expire.
const settledAfter = 2 * time.Second

// WritesReach reports whether the speaker of a node must write the Event that another node is unreachable. While that
// is not decided, it is to be called again with each later status.
func WritesReach(node, about string, status NodeStatus, now time.Time) (writes, decided bool) {
	if state, known := status.Members[about]; known && state != MemberSilent { // others receive it, or did until just now
		return true, now.Sub(status.Reach.Unreachable[about].Since) >= max(settledAfter, status.Dead)
	}
	for name, state := range status.Members {
		_, unreachable := status.Reach.Unreachable[name]
		if name < node && state != MemberSilent && !unreachable {
			return false, true
		}
	}
	return true, true
}
