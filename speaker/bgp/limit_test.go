package bgp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestLimits: a process with a session that reached the limit of prefixes, and one that ran out of memory, are not
// started again for minutes; the reason stays. They are started at once when their peer is changed, and not when
// another speaker sends the same configuration. The other peer keeps its process.
func TestLimits(t *testing.T) {
	for name, reason := range map[string]view.Reason{"flood": routes.TooManyPrefixes, "hungry": routes.OutOfMemory} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, socketPath(t), 0)
			s := startSpeaker(t, n.socket)
			s.Set(two())
			mine := s.established("a", 1)
			s.established("b", 1)
			with := two()
			with.Peers[name] = peer(252)
			s.Set(with)
			held := func(s *speaker) routes.Session {
				return s.wait("no process runs", func(now map[string]routes.Session) bool {
					return now[name].Reason == reason && strings.Contains(now[name].Message, "retry in 5m0s") &&
						testutil.ToFloat64(n.daemon.o.Metrics.processes) == 2
				})[name]
			}
			was := held(s)
			if was.State == routes.SessionEstablished {
				t.Errorf("the session is %+v", was)
			}
			if h, err := QueryHealth(t.Context(), n.socket); err != nil || h.Problem != "" {
				t.Errorf("its health is %+v (%v)", h, err)
			}
			starts := n.starts()
			s.stop()
			s = startSpeaker(t, n.socket)
			s.Set(with)
			if now := held(s); now != was {
				t.Errorf("for another speaker the session is %+v, was %+v", now, was)
			}
			if now := n.starts(); now != starts {
				t.Errorf("%v processes were started, and then %v", starts, now)
			}
			changed := *peer(252)
			changed.MaxReceivedPrefixes = 20
			s.Set(routes.Change{RouterID: with.RouterID, Peers: map[string]*routes.Peer{name: &changed}})
			if name == "flood" {
				s.established(name, 0)
			}
			s.wait("it is tried again", func(map[string]routes.Session) bool { return n.starts() == starts+1 })
			if now := s.established("a", 1); now != mine {
				t.Errorf("the other's session was %+v and is %+v", mine, now)
			}
		})
	}
}

func (n *node) starts() float64 { return testutil.ToFloat64(n.daemon.o.Metrics.starts) }

func TestNextHoldOff(t *testing.T) {
	want := []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour}
	for i, want := range want {
		if got := nextHoldOff(i + 1); got != want {
			t.Errorf("after %d it is %v, want %v", i+1, got, want)
		}
	}
	if got := nextHoldOff(1000); got != time.Hour {
		t.Errorf("after 1000 it is %v", got)
	}
}

// TestOutOfMemory covers the messages of the Go runtime.
func TestOutOfMemory(t *testing.T) {
	for text, want := range map[string]bool{
		"fatal error: out of memory":                        true,
		"fatal error: runtime: out of memory":               true,
		"fatal error: runtime: cannot allocate memory":      true,
		"fatal error: concurrent map writes":                false,
		"panic: this peer reports that it is out of memory": false,
		"signal: killed":                                    false,
	} {
		if got := outOfMemory(fmt.Errorf("%s", text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
