package bfd

import (
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// The share of a core that the loop may have before all others. A turn takes some tens of microseconds.
const (
	shareOf = 10 * time.Millisecond
	share   = 2500 * time.Microsecond
)

// raisePriority asks the kernel to run the calling thread before others: for a share of the time (SCHED_DEADLINE), else with the best nice
// value. Either needs CAP_SYS_NICE, the first one also that the thread may run on every core; without, packets may be late on a busy node
// (docs/design/bfd.md has figures).
//
// A real-time priority without such a bound would be dangerous: who floods the port would be served before all others on the node. And
// while Go's collector looks at the stack of the loop's goroutine, that one cannot come back from its wait: it yields in a loop (casgstatus
// of runtime/proc.go), but a real-time thread yields to none of lower priority. If the collector ran on the same core, both stood still until the kernel
// throttled real-time threads, after 0.95 s (sched_rt_runtime_us).
func raisePriority(log *slog.Logger) {
	deadline := unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		Runtime: uint64(share), Deadline: uint64(shareOf), Period: uint64(shareOf),
	}, 0)
	if deadline == nil {
		return
	}
	if nice := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); nice != nil {
		log.Warn("BFD runs with the priority of all others: give the container CAP_SYS_NICE, or detection may fail on a busy node", "deadline", deadline, "nice", nice)
		return
	}
	log.Warn("BFD runs with a nice value of -20 in place of a share of its own: let the container run on every core, or detection below 300 ms may fail on a busy node", "deadline", deadline)
}

// lowerPriority undoes raisePriority, since the thread lives on.
func lowerPriority() {
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr}, 0)
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0)
}

// CollectRarely is for the process that runs a Driver: garbage is collected only when that much memory is in use. It should be several times what
// the process needs.
//
// While the collector scans the stack of the loop's goroutine, the loop spends its share on waiting for it (see raisePriority) and may go
// on only in the next period. docs/design/bfd.md has figures.
func CollectRarely(limit int64) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(limit)
}
