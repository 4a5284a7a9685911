package tools

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newBuild(t *testing.T) (*Build, *strings.Builder) {
	t.Helper()
	var logged strings.Builder
	b, err := New(t.Context(), &logged)
	if err != nil {
		t.Fatal(err)
	}
	b.Dir = t.TempDir()
	return b, &logged
}

// Programs are built statically, so that they run in any guest, and are not rebuilt.
func TestOwn(t *testing.T) {
	b, _ := newBuild(t)
	if err := b.Own(t.Context(), "test/lab/cmd/labpod"); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(b.Path("labpod")).CombinedOutput(); err == nil || !strings.Contains(string(out), "use: labpod") {
		t.Errorf("labpod: %v: %s", err, out)
	}
	before, err := os.Stat(b.Path("labpod"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Own(t.Context(), "test/lab/cmd/labpod"); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(b.Path("labpod"))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("a program that has not changed was written again")
	}
}

// Another build into the same folder does not replace a lab's programs.
func TestOwnPrivate(t *testing.T) {
	b, _ := newBuild(t)
	b.Private = t.TempDir()
	if err := b.Own(t.Context(), "test/lab/cmd/labpod"); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(b.Path("labpod"))
	if err != nil {
		t.Fatal(err)
	}
	shared := &Build{Root: b.Root, Dir: b.Dir}
	if shared.Path("labpod") == b.Path("labpod") {
		t.Fatal("the private path is the shared one")
	}
	out := shared.Path("labpod")
	if msg, err := exec.Command("go", "build", "-C", b.Root, "-o", out, "./test/lab/cmd/labkubelet").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	after, err := os.ReadFile(b.Path("labpod"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the program was replaced")
	}
}

// A pinned program is built once for each content of test/tools/go.sum.
func TestPinned(t *testing.T) {
	b, logged := newBuild(t)
	stamp, err := b.stamp(pinned["kubectl"])
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{b.Path("kubectl"): "the program", b.stampFile("kubectl"): stamp} {
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Pinned(t.Context(), "kubectl"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(b.Path("kubectl")); err != nil || string(data) != "the program" {
		t.Errorf("a program of this content was built again: %v", err)
	}
	if logged.Len() > 0 {
		t.Errorf("logged %q for no event", logged)
	}

	// Changed content requires a build, which a canceled context refuses.
	if err := os.WriteFile(b.stampFile("kubectl"), []byte("older"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Pinned(ctx, "kubectl"); err == nil || !strings.Contains(err.Error(), "building kubectl") {
		t.Errorf("build of an older program: %v", err)
	}
}

func TestErrors(t *testing.T) {
	b, _ := newBuild(t)
	for want, err := range map[string]error{
		"no such folder":       b.Own(t.Context(), "cmd/nothing"),
		"not a pinned program": b.Pinned(t.Context(), "nothing"),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, want it to contain %q", err, want)
		}
	}
}

// Two concurrent builds wait for one another.
func TestLock(t *testing.T) {
	b, logged := newBuild(t)
	unlock, err := b.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.lock(ctx); err == nil || !strings.Contains(logged.String(), "waiting for another build") {
		t.Errorf("second lock: %v, logged %q", err, logged)
	}
	unlock()
	unlock, err = b.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// The progress names the programs that are not linked yet, and counts packages apart from messages.
func TestProgress(t *testing.T) {
	r := run{names: []string{"etcd", "kubectl"}, files: []string{pinned["etcd"].file(), pinned["kubectl"].file()}, out: t.TempDir()}
	if got, want := r.left(progress{done: 1, all: 5}), "2 of 5: etcd, kubectl"; got != want {
		t.Errorf("have %q, want %q", got, want)
	}
	if err := os.WriteFile(filepath.Join(r.out, "server"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, want := r.left(progress{done: 1, all: 5}), "3 of 5: kubectl"; got != want {
		t.Errorf("have %q, want %q", got, want)
	}
	var out verbose
	for _, part := range []string{"net/ht", "tp\nk8s.io/api/core/v1\n# x\n", "x.go:1:2: syntax error\n"} {
		if _, err := out.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.text.String(), "# x\nx.go:1:2: syntax error\n"; got != want || out.packages() != 2 {
		t.Errorf("%d packages and %q, want 2 and %q", out.packages(), got, want)
	}
}
