package bfd

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// raisePriority asks the kernel to run the calling thread before others: a little real-time priority, else a better nice value.
// Either needs CAP_SYS_NICE; without it packets may be late on a busy node (docs/design/bfd.md has figures).
func raisePriority(log *slog.Logger) {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	err := unix.SchedSetAttr(0, &attr, 0)
	if err == nil {
		return
	}
	if nice := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -10); nice != nil {
		log.Warn("BFD runs with the priority of all others: give the container CAP_SYS_NICE, or detection may fail on a busy node", "realtime", err, "nice", nice)
	}
}

// lowerPriority undoes raisePriority, since the thread lives on.
func lowerPriority() {
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr}, 0)
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0)
}
