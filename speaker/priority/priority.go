// Package priority has a thread run before others, for a bounded share of the time.
package priority

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Class is how the kernel schedules a thread.
type Class string

const (
	// Normal is SCHED_OTHER with the nice value of the process.
	Normal Class = "Normal"
	// Nice is SCHED_OTHER with the best nice value, -20. It counts within the cgroup only: the cgroup's CPU shares stay.
	Nice Class = "Nice"
	// Deadline is SCHED_DEADLINE: before all others, of any cgroup, for a share of the time.
	Deadline Class = "Deadline"
)

// Classes are all of them, the best first.
var Classes = []Class{Deadline, Nice, Normal}

// Raise asks the kernel to run the calling thread before others: for run of every period, else with the best nice value. What it runs beyond
// its share waits for the next period. Either needs CAP_SYS_NICE, the share also that the thread may run on every core of the machine (no
// cpuset). The error says why it is not Deadline. Whoever calls it has locked the thread, and calls lower, which undoes it, on that thread before
// unlocking it: threads are used again.
//
// A real-time priority without such a bound would be dangerous: it would put whoever floods the thread with packets before all else on the
// node. And where a goroutine comes back from a system call while its stack is scanned, Go's runtime yields until that is done
// (casgstatus of runtime/proc.go), but a real-time thread yields to none of ordinary priority. If the one that scans waits for the same core,
// both stand still, and all else there, until the kernel throttles the real-time thread: 0.95 s (sched_rt_runtime_us).
func Raise(run, period time.Duration) (class Class, lower func(), err error) {
	was, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return Normal, func() {}, fmt.Errorf("read the priority of a thread: %w", err)
	}
	lower = func() {
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: was.Policy, Nice: was.Nice, Priority: was.Priority}, 0)
	}
	err = unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Flags: unix.SCHED_FLAG_RESET_ON_FORK, // threads that it starts are ordinary
		Runtime: uint64(run), Deadline: uint64(period), Period: uint64(period),
	}, 0)
	if err == nil {
		return Deadline, lower, nil
	}
	err = fmt.Errorf("run %v of every %v before others (SCHED_DEADLINE): %w", run, period, err)
	if nice := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); nice != nil {
		return Normal, func() {}, fmt.Errorf("%w; take a nice value of -20: %w", err, nice)
	}
	return Nice, lower, err
}
