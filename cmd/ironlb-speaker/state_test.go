package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each node of a machine has its own file, and cleanup removes those and unfinished ones.
func TestStateFiles(t *testing.T) {
	dir := t.TempDir()
	o := options{nodeName: "a"}
	if path := o.stateFile(calicoPrefix); path != "" {
		t.Errorf("without a directory %s", path)
	}
	if err := removeState("", nil); err != nil {
		t.Error(err)
	}
	o.config.StateDir = dir
	for _, name := range []string{"a", "b.example"} {
		o.nodeName = name
		for _, file := range []string{o.stateFile(calicoPrefix), filepath.Join(dir, "other")} {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	log := &bytes.Buffer{}
	if err := removeState(dir, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "other" || strings.Count(log.String(), "delete file") != 2 {
		t.Errorf("left are %v, %v; log:\n%s", left, err, log)
	}
}
