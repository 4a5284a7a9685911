package bfd

import (
	"log/slog"
	"runtime/debug"

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

// CollectRarely is for the process that runs a Driver: garbage is collected only when that much memory is in use. It should be several times what
// the process needs.
//
// While the collector looks at the stack of the Driver's goroutine, that goroutine cannot come back from its wait: it yields in a loop
// (casgstatus of runtime/proc.go). But a thread of real-time priority yields to none of lower priority, and if it woke on the core on which the collector
// ran, that one goes on only when the kernel throttles real-time threads, after most of a second (sched_rt_runtime_us). docs/design/bfd.md has figures.
func CollectRarely(limit int64) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(limit)
}
