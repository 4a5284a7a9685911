package bfd

import (
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/ironlb/ironlb/speaker/priority"
)

// The share of a core that the loop may have before all others. A turn takes some tens of microseconds.
const (
	share   = 2500 * time.Microsecond
	shareOf = 10 * time.Millisecond
)

// raisePriority has the loop run before others until lower, or says what it means that it does not (docs/design/bfd.md has figures).
func raisePriority(log *slog.Logger) (lower func()) {
	class, lower, err := priority.Raise(share, shareOf)
	switch class {
	case priority.Nice:
		log.Warn("BFD runs with a nice value of -20 in place of a share of its own: let the container run on every core, or detection below 300 ms may fail on a busy node", "err", err)
	case priority.Normal:
		log.Warn("BFD runs with the priority of all others: give the container CAP_SYS_NICE, or detection may fail on a busy node", "err", err)
	}
	return lower
}

// CollectRarely is for the process that runs a Driver: garbage is collected only when that much memory is in use. It should be several times what
// the process needs.
//
// While the collector scans the stack of the loop's goroutine, the loop spends its share on waiting for it (see priority.Raise) and may go
// on only in the next period. docs/design/bfd.md has figures.
func CollectRarely(limit int64) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(limit)
}
