// Package priority gives a thread priority over others, for a bounded share of the time.
package priority

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Class is the scheduling class of a thread.
type Class string

const (
	// Normal is SCHED_OTHER with the nice value of the process.
	Normal Class = "Normal"
	// Nice is SCHED_OTHER with the best nice value, -20. It counts only within the cgroup: the cgroup's CPU shares
	// stay.
	Nice Class = "Nice"
	// Deadline is SCHED_DEADLINE: before all other threads, in any cgroup, for a share of the time.
	Deadline Class = "Deadline"
)

// Classes are all classes, best first.
var Classes = []Class{Deadline, Nice, Normal}

// Raise makes the kernel run the calling thread before others: for run of every period, or else with the best nice
// value. Work beyond its share waits for the next period. Both need CAP_SYS_NICE; the share also needs a thread that
// may run on every core of the machine (no cpuset). The error is the reason why the class is not Deadline. The caller
// must have locked the thread, and must call lower, which undoes Raise, on that thread before unlocking it, because
// threads are reused.
//
// A real-time priority without such a bound would be dangerous: a flood of packets to the thread would starve
// everything else on the node. Also, when a goroutine returns from a system call while its stack is scanned, Go's
// runtime yields until the scan ends (casgstatus of runtime/proc.go), but a real-time thread yields to no thread of
// ordinary priority. If the scanning thread waits for the same core, both stall, and everything else on that core,
// until the kernel throttles the real-time thread: 0.95 s (sched_rt_runtime_us).
func Raise(run, period time.Duration) (class Class, lower func(), err error) {
	was, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return Normal, func() {}, fmt.Errorf("read the priority of a thread: %w", err)
	}
	lower = func() {
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: was.Policy, Nice: was.Nice, Priority: was.Priority}, 0)
	}
	err = unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Flags: unix.SCHED_FLAG_RESET_ON_FORK, // its child threads are ordinary
		Runtime: uint64(run), Deadline: uint64(period), Period: uint64(period),
	}, 0)
	if err == nil {
		return Deadline, lower, nil
	}
	err = fmt.Errorf("run %v of every %v before others (SCHED_DEADLINE): %w", run, period, err)
	if nice := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); nice != nil {
		return Normal, func() {}, fmt.Errorf("%w; set nice value -20: %w", err, nice)
	}
	return Nice, lower, err
}
