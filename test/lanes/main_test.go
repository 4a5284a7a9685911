package main

import (
	"bytes"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

// scripts run as targets, by name.
var scripts = map[string]string{
	"good": "echo 'ok    ./a 1s'; echo detail",
	"bad":  "echo 'FAIL  ./b 1s'; echo cause; exit 3",
	// Each waits for the other, so that both end only if they run at the same time.
	"left":  "echo >$DIR/left; until [ -e $DIR/right ]; do :; done",
	"right": "echo >$DIR/right; until [ -e $DIR/left ]; do :; done",
	"both":  "test -e $DIR/left && test -e $DIR/right",
}

func runScripts(t *testing.T, interrupted bool, lanes ...string) (passed bool, out string) {
	t.Helper()
	t.Setenv("DIR", t.TempDir())
	var buf bytes.Buffer
	r := runner{out: &buf, interrupted: new(atomic.Bool), command: func(target string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "sh", "-c", scripts[target])
	}}
	r.interrupted.Store(interrupted)
	return r.run(lanes), buf.String()
}

func TestLanesRunAtTheSameTime(t *testing.T) {
	if passed, out := runScripts(t, false, "left good", "good right", "then", "both"); !passed {
		t.Errorf("failed:\n%s", out)
	}
}

// TestFailureIsLast: a failed target stops no other, and its output is the last.
func TestFailureIsLast(t *testing.T) {
	passed, out := runScripts(t, false, "bad good")
	if passed {
		t.Error("passed")
	}
	for _, line := range []string{"bad: FAIL  ./b 1s\n", "good: ok    ./a 1s\n"} {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in:\n%s", line, out)
		}
	}
	_, last, _ := strings.Cut(out, "=== 2 targets")
	if !strings.Contains(last, "cause") || strings.Contains(out, "detail") ||
		!strings.HasSuffix(out, "=== failed or not started: bad\n") {
		t.Errorf("output:\n%s", out)
	}
}

func TestInterruptedStartsNoFurtherTarget(t *testing.T) {
	if passed, out := runScripts(t, true, "good"); passed || !strings.Contains(out, "not started: good") {
		t.Errorf("passed=%v:\n%s", passed, out)
	}
}
