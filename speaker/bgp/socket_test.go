package bgp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSocketIsOurs(t *testing.T) {
	path := socketPath(t)
	first, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]os.FileMode{path: 0o600 | os.ModeSocket, filepath.Dir(path): 0o700 | os.ModeDir} {
		if info, err := os.Stat(file); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v (%v), want %v", file, info.Mode(), err, want)
		}
	}
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "another ironlb-bgpd") {
		t.Errorf("a second process gives %v", err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first one does not listen any more: %v", err)
	} else {
		conn.Close()
	}
	first.SetUnlinkOnClose(false) // as after a kill
	first.close()
	next, err := listen(path)
	if err != nil {
		t.Fatalf("after one that was killed: %v", err)
	}
	next.close()
}

func TestSocketDirectory(t *testing.T) {
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
		if l, err := listen(filepath.Join(d, "s")); err == nil {
			l.close()
			t.Errorf("a socket in %s is accepted", d)
		}
	}
	l, err := listen(filepath.Join(open, "s"))
	if err != nil {
		t.Fatal(err)
	}
	l.close()
	if info, err := os.Stat(open); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v (%v)", info.Mode(), err)
	}
}

// TestSocketRefused: a path on which listening is impossible or harmful is rejected before anything is changed.
func TestSocketRefused(t *testing.T) {
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
		{filepath.Join(dir, strings.Repeat("x", longestSocket)), "at most 107 bytes"},
		{file, "no socket"},
		{open, "no socket"},
		{filepath.Join(open, "bgpd.sock"), "such as file"},
	} {
		l, err := listen(test.socket)
		if err == nil {
			l.close()
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

// TestSocketTaken: a directory is accepted if it does not exist, is closed to other users, or contains only files of an
// earlier process.
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
		l, err := listen(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		l.close()
	}
}

// TestNoRequest: a connection with another or an invalid first line is closed with a reason, and the others are served.
func TestNoRequest(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	s.Set(two())
	s.established("a", 1)
	s.established("b", 1)
	for _, line := range []string{"GET / HTTP/1.1\r\n\r\n", `{"leave":{}}` + "\n", `{}` + "\n", "\x00\n"} {
		conn, err := net.Dial("unix", n.socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "decode a message") {
			t.Errorf("after %q: %q, %v", line, answer, err)
		}
		conn.Close()
	}
	if h, err := QueryHealth(t.Context(), n.socket); err != nil || h.Problem != "" {
		t.Errorf("its health is %+v (%v)", h, err)
	}
	s.established("a", 1)
}

func TestQueryHealthWithoutServer(t *testing.T) {
	if _, err := QueryHealth(context.Background(), socketPath(t)); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("the health without a server is %v", err)
	}
}

// TestOtherUser: another user's process is rejected, even if file permissions allow it.
func TestOtherUser(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: this starts a process as another user, which needs root")
	}
	// Not in t.TempDir, which other users cannot access.
	dir, err := os.MkdirTemp("/tmp", "bgpd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "bgpd", "bgpd.sock")
	startNode(t, socket, 0)
	s := startSpeaker(t, socket)
	s.Set(two())
	s.established("a", 1)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(socket), 0o755), os.Chmod(socket, 0o666)); err != nil {
		t.Fatal(err)
	}
	query := func(uid uint32) (string, error) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Dir = append(os.Environ(), socketEnv+"="+socket), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := query(0); err != nil {
		t.Errorf("the same user is sent away: %v\n%s", err, out)
	}
	if out, err := query(65534); err == nil || !strings.Contains(out, "only user 65534 may connect") {
		t.Errorf("as another user: %v\n%s", err, out)
	}
	// The server also rejects a client that does not check the server's user.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Dir = append(os.Environ(), rawSocket+"="+socket), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("another user's request is answered with %q (%v)", out, err)
	}
}
