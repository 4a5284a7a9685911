package unixsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "own", "s")
	first, err := Listen("--socket", path)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]os.FileMode{path: 0o600 | os.ModeSocket, filepath.Dir(path): 0o700 | os.ModeDir} {
		if info, err := os.Stat(file); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v (%v), want %v", file, info.Mode(), err, want)
		}
	}
	if _, err := Listen("--socket", path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second process gives %v", err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first one does not listen any more: %v", err)
	} else {
		conn.Close()
	}
	first.SetUnlinkOnClose(false) // as after a kill
	first.Release()
	next, err := Listen("--socket", path)
	if err != nil {
		t.Fatalf("after one that was killed: %v", err)
	}
	next.Release()
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	shared := filepath.Join(dir, "shared")
	link := filepath.Join(dir, "link")
	open := filepath.Join(dir, "open")
	for _, d := range []string{shared, open} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, 0o777); err != nil { // regardless of the umask
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(shared, 0o777|os.ModeSticky), os.Symlink(open, link)); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{shared, link} {
		if l, err := Listen("--socket", filepath.Join(d, "s")); err == nil {
			l.Release()
			t.Errorf("a socket in %s is accepted", d)
		}
	}
	l, err := Listen("--socket", filepath.Join(open, "s"))
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	if info, err := os.Stat(open); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v (%v)", info.Mode(), err)
	}
}

// TestRefused: a path on which listening is impossible or harmful is rejected before anything is changed.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	file := filepath.Join(open, "file")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o755), os.WriteFile(file, []byte("kept"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ socket, words string }{
		{"", "absolute path"},
		{"bgpd.sock", "absolute path"},
		{"/", "absolute path"},
		{filepath.Join(dir, strings.Repeat("x", longest)), "at most 107 bytes"},
		{file, "no socket"},
		{open, "no socket"},
		{filepath.Join(open, "bgpd.sock"), "such as file"},
	} {
		l, err := Listen("--socket", test.socket)
		if err == nil {
			l.Release()
		}
		if err == nil || !strings.Contains(err.Error(), "--socket is ") || !strings.Contains(err.Error(), test.words) {
			t.Errorf("--socket %q: %v, want an error with %q", test.socket, err, test.words)
		}
	}
	if info, err := os.Stat(open); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory has mode %v (%v)", info.Mode(), err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "kept" {
		t.Errorf("the file has %q (%v)", text, err)
	}
}

// TestTaken: a directory is accepted if it does not exist, is closed to other users, or contains only files of an
// earlier process.
func TestTaken(t *testing.T) {
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
		l, err := Listen("--socket", path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		l.Release()
	}
}
