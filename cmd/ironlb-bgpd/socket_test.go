package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSocketRefused: a path that cannot be listened at, or at which that would do harm, is refused before anything is changed.
func TestSocketRefused(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	file := filepath.Join(open, "file")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o755), os.WriteFile(file, []byte("kept"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ socket, says string }{
		{"", "absolute path"},
		{"bgpd.sock", "absolute path"},
		{"/", "absolute path"},
		{filepath.Join(dir, strings.Repeat("x", longestSocket)), "at most 107 bytes"},
		{file, "no socket"},
		{open, "no socket"},
		{filepath.Join(open, "bgpd.sock"), "such as file"},
	} {
		if err := checkSocket(test.socket); err == nil || !strings.Contains(err.Error(), "--socket is ") || !strings.Contains(err.Error(), test.says) {
			t.Errorf("--socket %q: %v, want an error with %q", test.socket, err, test.says)
		}
	}
	cmd := command() // not with the paths above, of which one that is taken would be closed
	cmd.SetArgs([]string{"--socket", file})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // one that is taken runs until then
	defer cancel()
	if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("the program runs with --socket %s: %v", file, err)
	}
	if info, err := os.Stat(open); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the folder has mode %v (%v)", info.Mode(), err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "kept" {
		t.Errorf("the file has %q (%v)", text, err)
	}
}

// TestSocketTaken: a folder that is not there, that nobody else may enter, or that has nothing but what an earlier process left is good.
func TestSocketTaken(t *testing.T) {
	dir := t.TempDir()
	own, left := filepath.Join(dir, "own"), filepath.Join(dir, "left")
	socket := filepath.Join(left, "bgpd.sock")
	if err := errors.Join(os.Mkdir(own, 0o700), os.WriteFile(filepath.Join(own, "file"), nil, 0o600),
		os.Mkdir(left, 0o755), os.Chmod(left, 0o755), os.WriteFile(socket+".lock", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "new", "bgpd.sock"), filepath.Join(own, "bgpd.sock"), socket} {
		if err := checkSocket(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestHealthyTimeout: a time in which nothing can answer is a mistake, and not an answer.
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
