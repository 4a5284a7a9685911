package bfd

import (
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPriority: the thread has its share, or the log warns, with the remediation.
func TestPriority(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var log strings.Builder
	defer raisePriority(slog.New(slog.NewTextHandler(&log, nil)))()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	silent := log.Len() == 0
	if shared := attr.Policy == unix.SCHED_DEADLINE && attr.Runtime == uint64(share) && attr.Period == uint64(shareOf); shared != silent {
		t.Errorf("the thread has %+v, and the log is %q", attr, log.String())
	}
	if !silent && (!strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "container")) {
		t.Errorf("the log is %q", log.String())
	}
}
