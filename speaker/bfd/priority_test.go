package bfd

import (
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPriority: the thread goes before others, but for a bounded share of the time, whatever it is made to do. Where it may not, the log says so.
func TestPriority(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var log strings.Builder
	raisePriority(slog.New(slog.NewTextHandler(&log, nil)))
	defer lowerPriority()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if attr.Policy != unix.SCHED_DEADLINE { // it must say so, and have no real-time priority of another kind
		if attr.Policy != unix.SCHED_NORMAL || !strings.Contains(log.String(), "level=WARN") {
			t.Errorf("without SCHED_DEADLINE the thread has policy %d, and the log says %q", attr.Policy, log.String())
		}
		return
	}
	if log.Len() > 0 {
		t.Errorf("the log says %q", log.String())
	}
	if attr.Runtime != uint64(share) || attr.Period != uint64(shareOf) || attr.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 {
		t.Errorf("the thread has %+v", attr)
	}
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
	began := time.Now()
	for time.Since(began) < 300*time.Millisecond { // as if it were flooded
	}
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &after)
	used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	if used > 150*time.Millisecond { // a quarter, and what the kernel's tick is late
		t.Errorf("it ran for %v of 300 ms", used)
	}
	lowerPriority()
	if attr, err = unix.SchedGetAttr(0, 0); err != nil || attr.Policy != unix.SCHED_NORMAL {
		t.Errorf("at the end the thread has %+v, %v", attr, err)
	}
}
