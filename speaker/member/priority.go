package member

import (
	"log/slog"
	"time"

	"github.com/ironlb/ironlb/speaker/priority"
)

// The share of a core that the loop may have before all others.
const (
	share   = 5 * time.Millisecond
	shareOf = 20 * time.Millisecond
)

// raisePriority has the loop run before others until lower. Without, it works, but may turn late on a busy node.
func raisePriority(log *slog.Logger) (lower func()) {
	level, lower, err := priority.Raise(share, shareOf)
	if level == priority.Ordinary {
		log.Debug("the liveness loop runs with the priority of all others", "err", err)
	}
	return lower
}
