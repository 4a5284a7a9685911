package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSocketRefused: a path that would be damaged by listening is refused before anything is changed.
func TestSocketRefused(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	file := filepath.Join(open, "file")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o755), os.WriteFile(file, []byte("kept"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for socket, message := range map[string]string{file: "no socket", filepath.Join(open, "bgpd.sock"): "such as file", "bgpd.sock": "absolute path"} {
		cmd := command()
		cmd.SetArgs([]string{"--socket", socket})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // an accepted one runs until then
		if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), "--socket is ") || !strings.Contains(err.Error(), message) {
			t.Errorf("the program with --socket %s: %v, want an error with %q", socket, err, message)
		}
		cancel()
	}
	if info, err := os.Stat(open); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the folder has mode %v (%v)", info.Mode(), err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "kept" {
		t.Errorf("the file has %q (%v)", text, err)
	}
}

// TestHealthyTimeout: a timeout that allows no answer is an invalid flag, not an unhealthy result.
func TestHealthyTimeout(t *testing.T) {
	for _, limit := range []string{"0", "-1s"} {
		cmd := command()
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"healthy", "--timeout", limit})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--timeout is ") {
			t.Errorf("--timeout %s: %v", limit, err)
		}
	}
}
