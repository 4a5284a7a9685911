package tools

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A file changed by upstream causes an error that names the text, and no build without the edit.
func TestEdit(t *testing.T) {
	e := edit{file: "f.go", old: "a && b", new: "a", count: 2}
	got, err := e.apply("if a && b {}\nif a && b {}\n")
	if want := "if a {}\nif a {}\n"; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for _, changed := range []string{"if a && b {}\n", "", "a && b; a && b; a && b"} {
		if _, err := e.apply(changed); err == nil || !strings.Contains(err.Error(), `"a && b" occurs`) {
			t.Errorf("%q: got error %v", changed, err)
		}
	}
}

// The edits apply to the pinned version, and change nothing else in the files.
func TestEditsFit(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads modules")
	}
	b, _ := newBuild(t)
	prog := pinned["e2e.test"]
	module := b.module(prog)
	file, err := prog.patched.overlay(module, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var overlay struct{ Replace map[string]string }
	if err := json.Unmarshal(text, &overlay); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"e2e/e2e_test.go", "e2e/network/loadbalancer.go", "e2e/network/service.go"} {
		if overlay.Replace[filepath.Join(module, want)] == "" {
			t.Errorf("the overlay lacks %s", want)
		}
	}
	tests, err := os.ReadFile(overlay.Replace[filepath.Join(module, "e2e/network/loadbalancer.go")])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(tests), "LoadBalancerIPModeProxy {") {
		t.Error("loadbalancer.go still skips addresses with ipMode Proxy")
	}
	wrong := *prog.patched
	wrong.edits = append(slices.Clone(wrong.edits), edit{file: "test/e2e/no-such-file.go"})
	if _, err := wrong.overlay(module, t.TempDir()); err == nil {
		t.Error("an edit that does not fit is no error")
	}
}
