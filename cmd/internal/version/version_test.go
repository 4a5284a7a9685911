package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

// TestMake: a program prints the version and the commit passed to make.
func TestMake(t *testing.T) {
	plan, err := exec.Command("make", "-n", "-C", "../../..", "build", "TAG=v1.2.3", "COMMIT=0123abc").Output()
	if err != nil {
		t.Fatalf("make -n build: %v", err)
	}
	flags := regexp.MustCompile(`-ldflags='([^']*)'`).FindSubmatch(plan)
	if flags == nil {
		t.Fatalf("make -n build has no -ldflags: %s", plan)
	}
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags="+string(flags[1]),
		"-o", program, "./testdata/program")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := exec.Command(program).CombinedOutput()
	if got, want := strings.TrimSpace(string(out)), "v1.2.3 (commit 0123abc)"; err != nil || got != want {
		t.Errorf("the program: %v, %q, want %q", err, got, want)
	}
}

// TestRecorded: without make, the commit is the one that go records.
func TestRecorded(t *testing.T) {
	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, ""},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "false"}}, "abc"},
		{[]debug.BuildSetting{{Key: "vcs.modified", Value: "true"}, {Key: "vcs.revision", Value: "abc"}}, "abc-dirty"},
	} {
		if got := recorded(c.settings); got != c.want {
			t.Errorf("recorded(%v) = %q, want %q", c.settings, got, c.want)
		}
	}
}
