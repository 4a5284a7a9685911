package main

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
)

// scripts run as targets, by name.
var scripts = map[string]string{
	"good": "echo 'PASS  ./a 1s'; echo detail",
	"bad":  "echo 'FAIL  ./b 1s'; echo cause; exit 3",
	"nice": "echo \"PASS  nice $(nice)\"; cat /proc/self/autogroup",
}

func runScripts(ctx context.Context, targets ...string) (passed bool, out string) {
	return runWith(ctx, nil, targets...)
}

func runWith(ctx context.Context, background [][]string, targets ...string) (passed bool, out string) {
	var buf bytes.Buffer
	r := runner{out: &buf, command: func(target string) *exec.Cmd { return exec.Command("sh", "-c", scripts[target]) }}
	passed = r.run(ctx, targets, background)
	return passed, buf.String()
}

func TestAllPass(t *testing.T) {
	if passed, out := runScripts(t.Context(), "good", "good"); !passed || strings.Contains(out, "detail") {
		t.Errorf("passed=%v:\n%s", passed, out)
	}
}

// TestFailureIsLast: a failed target does not stop the others, and its output is the last.
func TestFailureIsLast(t *testing.T) {
	passed, out := runScripts(t.Context(), "bad", "good")
	if passed {
		t.Error("passed")
	}
	for _, line := range []string{"bad: FAIL  ./b 1s\n", "good: PASS  ./a 1s\n"} {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in:\n%s", line, out)
		}
	}
	_, last, _ := strings.Cut(out, "=== 2 targets")
	if !strings.Contains(last, "cause") || strings.Contains(out, "detail") || !strings.HasSuffix(out, "=== failed: bad\n") {
		t.Errorf("output:\n%s", out)
	}
}

func TestInterruptedStartsNoOther(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if passed, out := runScripts(ctx, "good"); passed || strings.Contains(out, "good: PASS") {
		t.Errorf("passed=%v:\n%s", passed, out)
	}
}

// TestBackground: a target in the background runs with low priority, the others with the usual one, which is low where
// this test runs in the background.
func TestBackground(t *testing.T) {
	usual, err := exec.Command("nice").Output()
	if err != nil {
		t.Fatal(err)
	}
	passed, out := runWith(t.Context(), [][]string{{"nice"}, {"bad"}}, "good", "nice")
	if passed || !strings.Contains(out, "nice: PASS  nice 10\n") || !strings.Contains(out, "nice: PASS  nice "+string(usual)) ||
		!strings.HasSuffix(out, "=== failed: bad\n") {
		t.Errorf("passed=%v:\n%s", passed, out)
	}
}
