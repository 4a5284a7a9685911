package bgp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

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

// TestListenEnds: the end of the context is never taken for a failed listener, which would end the daemon before its
// peers are notified.
func TestListenEnds(t *testing.T) {
	d := NewDaemon(DaemonOptions{Log: slog.New(slog.DiscardHandler), Socket: socketPath(t)})
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.listen(ctx) }()
		for conn, err := net.Dial("unix", d.o.Socket); ; conn, err = net.Dial("unix", d.o.Socket) {
			if err == nil {
				conn.Close()
				break
			}
			runtime.Gosched()
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

func TestQueriesWithoutServer(t *testing.T) {
	socket := socketPath(t)
	_, health := QueryHealth(t.Context(), socket)
	_, metrics := QueryMetrics(t.Context(), socket)
	for _, err := range []error{health, metrics} {
		if err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("without a server the answer is %v", err)
		}
	}
}

// failing is a collector of a metric that cannot be read.
type failing struct{}

func (failing) Describe(chan<- *prometheus.Desc) {}

func (failing) Collect(to chan<- prometheus.Metric) {
	err := errors.New("as the test wants")
	to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
}

// TestQueryMetrics: the metrics are sent whole, to a client that does not replace the speaker. Why they cannot be is in
// the error.
func TestQueryMetrics(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	s.Set(two())
	s.established("a", 1)
	n.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "more", Help: "A \"line\"\nand one."}, func() float64 { return 7 }))
	for range 2 {
		text, err := QueryMetrics(t.Context(), n.socket)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"\nironlb_bgp_speaker_connected 1\n", "\nironlb_bgp_wanted_peers 2\n", "\nmore 7\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("the metrics have no %q:\n%s", want, text)
			}
		}
	}
	n.reg.MustRegister(failing{})
	if text, err := QueryMetrics(t.Context(), n.socket); err == nil || !strings.Contains(err.Error(), "as the test wants") {
		t.Errorf("metrics that cannot be gathered are %q (%v)", text, err)
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
