package member

import (
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// The share of a core that the loop may have before all others.
const (
	shareOf = 20 * time.Millisecond
	share   = 5 * time.Millisecond
)

// raisePriority asks the kernel to run the calling thread before others: for a share of the time (SCHED_DEADLINE), else with the best
// nice value. Either needs CAP_SYS_NICE; without it the loop works, but may turn late on a busy node.
//
// A real-time priority without such a bound would be dangerous: where a goroutine comes back from a system call while its stack is
// scanned, Go's runtime yields until that is done (runtime/proc.go, casgstatus), and to threads of ordinary priority a real-time thread
// does not yield. If the scanning one waits for the same core, both stand still, and all else there, until the kernel throttles the
// real-time thread: 0.95 s.
func raisePriority(log *slog.Logger) {
	err := unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		Runtime: uint64(share), Deadline: uint64(shareOf), Period: uint64(shareOf),
	}, 0)
	if err == nil {
		return
	}
	if nice := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); nice != nil {
		log.Debug("the liveness loop runs with the priority of all others", "deadline", err, "nice", nice)
	}
}

// lowerPriority undoes raisePriority, since the thread lives on.
func lowerPriority() {
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr}, 0)
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0)
}
