package bfd

import (
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/ironlb/ironlb/speaker/priority"
)

// The share of a core that the loop may use before all other threads. A tick takes some tens of microseconds.
const (
	share   = 2500 * time.Microsecond
	shareOf = 10 * time.Millisecond
)

// raisePriority gives the loop priority over others until lower, or logs the consequence if that fails
// (docs/design/bfd.md has figures).
func raisePriority(log *slog.Logger) (lower func()) {
	class, lower, err := priority.Raise(share, shareOf)
	switch class {
	case priority.Nice:
		log.Warn("BFD runs with a nice value of -20 in place of a share of its own: let the container run on every core, or detection below 300 ms may fail on a busy node", "error", err)
	case priority.Normal:
		log.Warn("BFD runs with the priority of all others: give the container CAP_SYS_NICE, or detection may fail on a busy node", "error", err)
	}
	return lower
}

// CollectRarely is for the process that runs a Driver: garbage is collected only when that much memory is in use. The
// limit should be several times what the process needs.
//
// While the collector scans the stack of the loop's goroutine, the loop waits for it and uses up its share (see
// priority.Raise), and may continue only in the next period. docs/design/bfd.md has figures.
func CollectRarely(limit int64) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(limit)
}
