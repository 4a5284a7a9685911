package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// calls count in which system call each thread was seen.
type calls map[int]map[string]int

// waitingIn are the system calls in which threads of Go programs usually wait.
var waitingIn = map[string]string{
	strconv.Itoa(unix.SYS_NANOSLEEP): "nanosleep", strconv.Itoa(unix.SYS_FUTEX): "futex",
	strconv.Itoa(unix.SYS_EPOLL_PWAIT): "epoll_pwait", strconv.Itoa(unix.SYS_PPOLL): "ppoll",
	strconv.Itoa(unix.SYS_WAITID): "waitid", strconv.Itoa(unix.SYS_RECVFROM): "recvfrom",
	strconv.Itoa(unix.SYS_RECVMSG): "recvmsg", strconv.Itoa(unix.SYS_READ): "read",
}

// sample adds where each thread of a process is now. Threads that end meanwhile are left out.
func (c calls) sample(pid int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid)) // the pattern is well-formed
	for _, file := range files {
		tid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if c[tid] == nil {
			c[tid] = map[string]int{}
		}
		c[tid][callOf(string(text))]++
	}
}

// callOf returns the system call by the content of /proc/PID/syscall.
func callOf(text string) string {
	number, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	return cmp.Or(waitingIn[number], number)
}

// usual returns the call in which a thread was seen most often.
func (c calls) usual(tid int) string {
	best := "-"
	for _, name := range slices.Sorted(maps.Keys(c[tid])) {
		if best == "-" || c[tid][name] > c[tid][best] {
			best = name
		}
	}
	return best
}

// policies are the scheduling policies by number (include/uapi/linux/sched.h).
var policies = map[uint32]string{unix.SCHED_NORMAL: "normal", unix.SCHED_FIFO: "fifo", unix.SCHED_RR: "rr", unix.SCHED_DEADLINE: "deadline"}

func policy(tid int) string {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return "-"
	}
	if attr.Policy == unix.SCHED_NORMAL && attr.Nice != 0 {
		return fmt.Sprintf("nice %d", attr.Nice)
	}
	return cmp.Or(policies[attr.Policy], strconv.Itoa(int(attr.Policy)))
}

// printThreads prints a table of the threads that did anything, the most expensive first. What is missing to the CPU
// time of the process was used by children and by threads that have ended.
func printThreads(w io.Writer, o observed, before, after sample, seen calls) {
	took := after.at.Sub(before.at)
	used := func(tid int) time.Duration { return after.threads[tid].cpu - before.threads[tid].cpu }
	tids := slices.SortedFunc(maps.Keys(after.threads), func(a, b int) int {
		return cmp.Or(cmp.Compare(used(b), used(a)), cmp.Compare(a, b))
	})
	fmt.Fprintf(w, "threads of %s on %s:\n", o.name, o.node)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "tid\tname\tpolicy\tin\tcpu-%\tswitches/s")
	rest := after.cpu - before.cpu
	for _, tid := range tids {
		t := after.threads[tid]
		yields := t.yields - before.threads[tid].yields
		if rest -= used(tid); yields > 0 {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%.3f\t%.1f\n", tid, t.name, policy(tid), seen.usual(tid),
				percent(used(tid), took), float64(yields)/took.Seconds())
		}
	}
	fmt.Fprintf(table, "-\tchildren and ended threads\t-\t-\t%.3f\t-\n", percent(rest, took))
	_ = table.Flush() // a failed progress is no failed measurement
}
