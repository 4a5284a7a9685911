package member

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

// Another speaker with this node's name is reported wherever it is received: it sends nothing to this node's own
// address.
func TestSameNameByGroup(t *testing.T) {
	for _, a := range []arrival{{group: true}, {broadcast: true}, {}} {
		var log bytes.Buffer
		l := &loop{Detector: &Detector{options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}}
		l.logRejected(DropName, a)
		if !bytes.Contains(log.Bytes(), []byte("has the name of this node")) {
			t.Errorf("%+v: log %q", a, log.String())
		}
	}
}

// A socket that was closed after the loop found it readable is not read: its descriptor may be reused by then.
func TestClosedSocketIsNotRead(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &socket{fd: fd}
	l := &loop{Detector: &Detector{metrics: newMetrics(prometheus.NewRegistry())}}
	l.reads, l.polls = []*socket{s}, []unix.PollFd{{}, {Revents: unix.POLLIN}}
	s.close()
	l.receive()
	if n := testutil.ToFloat64(l.metrics.dropped["unreadable"]); n > 0 {
		t.Errorf("read %v times", n)
	}
}
