package main

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab/router"
)

// each runs a test with every kind of router.
func each(t *testing.T, test func(t *testing.T, kind string)) {
	for kind := range router.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// same reports whether two times denote the same moment: routers report ages, and FRR in seconds.
func same(a, b time.Time) bool { return a.Sub(b).Abs() < 1100*time.Millisecond }

// TestSpeakerRestarts: nothing is sent on the wire, and no state is lost.
func TestSpeakerRestarts(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string) {
		r := newRig(t, kind, true)
		s := r.speaker()
		s.Set(wanted(true, true))
		before, seen := r.settled(true), len(r.monitor.Events())
		r.session(s, "established", established)
		s.stop()
		next := r.speaker()
		mine := r.session(next, "established for the next speaker", established)
		next.Set(wanted(true, true))
		change := wanted(true, true)
		change.Full = false
		change.Routes[prefix("203.0.113.3/32")] = change.Routes[vips[0]]
		next.Set(change)
		again := r.session(next, "a third route", func(s routes.Session) bool { return s.Prefixes == 3 })
		r.sees("the third route", func() (bool, error) {
			prefixes, err := r.router.Routes(r.ctx, 4)
			return len(prefixes) == 3, err
		})
		if again.Changes != mine.Changes || !again.Since.Equal(mine.Since) || again.BFD != view.BFDUp {
			t.Errorf("the session was %+v and is %+v", mine, again)
		}
		if sessions, err := r.router.Sessions(r.ctx); err != nil || !same(sessions["node"].Since, before.Since) {
			t.Errorf("the router's session is since %v (%v), and was since %v", sessions["node"].Since, err, before.Since)
		}
		if events := r.changes(seen); len(events) != 1 || events[0].Deleted {
			t.Errorf("the router's routes changed: %v", events)
		}
	})
}

// TestGoBGPIsKilled: the peer detects a graceful restart, and BFD is not affected.
func TestGoBGPIsKilled(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string) {
		r := newRig(t, kind, true)
		s := r.speaker()
		s.Set(wanted(true, true))
		before := r.settled(true)
		mine, seen := r.session(s, "established", established), len(r.monitor.Events())
		bfd, err := r.bfd()
		if err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		if err := syscall.Kill(r.child(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.session(s, "the end is reported", func(s routes.Session) bool { return s.Reason == routes.NoBGPProcess && s.BFD == view.BFDUp })
		again := r.session(s, "established again", established)
		took := time.Since(killed)
		r.sees("another session", func() (bool, error) {
			sessions, err := r.router.Sessions(r.ctx)
			return sessions["node"].Established && !same(sessions["node"].Since, before.Since), err
		})
		t.Logf("established again after %v", took)
		if again.Changes != mine.Changes+1 || again.BFD != view.BFDUp || !again.BFDSince.Equal(mine.BFDSince) {
			t.Errorf("the session was %+v and is %+v", mine, again)
		}
		if now, err := r.bfd(); err != nil || now.State != "Up" || now.Downs != bfd.Downs || now.Since.Sub(bfd.Since).Abs() > 2*time.Second {
			t.Errorf("the router's BFD session was %+v and is %+v (%v)", bfd, now, err)
		}
		if events := r.changes(seen); len(events) > 0 {
			t.Errorf("the router's routes changed: %v", events)
		}
	})
}

// TestTerminated with graceful restart: the process ends silently, and the next one continues.
func TestTerminated(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string) {
		r := newRig(t, kind, false)
		s := r.speaker()
		s.Set(wanted(true, false))
		r.session(s, "established", established)
		r.settled(false)
		seen := len(r.monitor.Events())
		asked := time.Now()
		r.signal(syscall.SIGTERM)
		r.ended()
		if took := time.Since(asked); took >= 2*time.Second || r.process.Wait() != nil {
			t.Errorf("it ended after %v: %v", took, r.process.Wait())
		}
		r.session(s, "the speaker knows", func(s routes.Session) bool { return s.Reason == routes.NoBGPProcess })
		r.start()
		r.session(s, "established again", established)
		r.settled(false)
		if events := r.changes(seen); len(events) > 0 {
			t.Errorf("the router's routes changed: %v", events)
		}
	})
}

// gracefulShutdown is the routers' notation of 65535:0 (RFC 8326, 5).
var gracefulShutdown = map[string]string{"bird": "65535:0", "frr": "graceful-shutdown"}

// TestTerminatedPolitely: without graceful restart the routes get GRACEFUL_SHUTDOWN, the router has two seconds to
// switch, and then the routes are withdrawn.
func TestTerminatedPolitely(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string) {
		r := newRig(t, kind, true)
		s := r.speaker()
		s.Set(wanted(false, true))
		r.session(s, "established", established)
		r.settled(true)
		seen := len(r.monitor.Events())
		asked := time.Now()
		r.signal(syscall.SIGTERM)
		r.sees("the community", func() (bool, error) {
			paths, err := r.router.RIB(r.ctx, vips[0].String())
			return len(paths) == 1 && slices.Contains(paths[0].Communities, gracefulShutdown[kind]) && slices.Contains(paths[0].Communities, "65001:1"), err
		})
		for _, vip := range vips {
			e, err := r.monitor.Wait(r.ctx, func(e router.Event) bool { return e.Deleted && e.Prefix == vip })
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%v withdrawn after %v", vip, e.At.Sub(asked))
			if e.At.Sub(asked) < 1900*time.Millisecond {
				t.Errorf("%v was withdrawn after %v", vip, e.At.Sub(asked))
			}
		}
		r.ended()
		if took := time.Since(asked); took > 10*time.Second || r.process.Wait() != nil {
			t.Errorf("it ended after %v: %v", took, r.process.Wait())
		}
		for _, e := range r.changes(seen) {
			if !e.Deleted && e.At.Sub(asked) > 1900*time.Millisecond {
				t.Errorf("a route came back: %v", e)
			}
		}
	})
}

// TestPathIsCut: BFD detects it, and ends the BGP session at once on this side. Times are measured, so it ends before
// the parallel tests begin.
func TestPathIsCut(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		r := newRig(t, kind, true)
		if err := r.router.Configure(r.ctx, config(quick)); err != nil {
			t.Fatal(err)
		}
		s, change := r.speaker(), wanted(true, true)
		change.Peers["tor"].BFD = quick
		s.Set(change)
		r.session(s, "established", established)
		r.settled(true)
		r.session(s, "BFD is up", func(s routes.Session) bool { return s.BFD == view.BFDUp })
		cut := time.Now()
		r.cut()
		down := r.session(s, "the session is down", func(s routes.Session) bool { return s.State != routes.SessionEstablished })
		took := time.Since(cut)
		t.Logf("cut, and down %v later: BFD at +%v, BGP at +%v", took, down.BFDSince.Sub(cut), down.Since.Sub(cut))
		if down.Reason != routes.BFDWentDown || down.BFD != view.BFDDown {
			t.Errorf("the session is %+v", down)
		}
		if _, err := r.monitor.Wait(r.ctx, func(e router.Event) bool { return e.Deleted && e.Prefix == vips[0] }); err != nil {
			t.Errorf("the router keeps the route: %v", err)
		}
	})
}

// TestHold: the routes of a speaker that does not come back are not advertised indefinitely.
func TestHold(t *testing.T) {
	t.Parallel()
	r := newRig(t, "bird", false, "--hold", "500ms")
	s := r.speaker()
	s.Set(wanted(true, false))
	r.session(s, "established", established)
	before := r.settled(false)
	s.stop()
	stopped := time.Now()
	e, err := r.monitor.Wait(r.ctx, func(e router.Event) bool { return e.Deleted && e.Prefix == vips[0] })
	if err != nil || e.At.Sub(stopped) < 400*time.Millisecond {
		t.Fatalf("withdrawn after %v (%v)", e.At.Sub(stopped), err)
	}
	next := r.speaker()
	next.Set(wanted(true, false))
	r.session(next, "established", established)
	if now := r.settled(false); !same(now.Since, before.Since) {
		t.Errorf("the router's session was since %v and is since %v", before.Since, now.Since)
	}
}

// TestKilled: when the parent is killed no process is left, and the next one takes over the socket.
func TestKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, "bird", false)
	s := r.speaker()
	s.Set(wanted(true, false))
	r.session(s, "established", established)
	r.settled(false)
	seen, child := len(r.monitor.Events()), r.child()
	r.signal(syscall.SIGKILL)
	r.ended()
	r.sees("the child's end", func() (bool, error) { return errors.Is(syscall.Kill(child, 0), syscall.ESRCH), nil })
	r.start()
	r.session(s, "established again", established)
	r.settled(false)
	if events := r.changes(seen); len(events) > 0 {
		t.Errorf("the router's routes changed: %v", events)
	}
}

// TestTerminatedWithBFD: BFD ends with the process. The effect on a router in a graceful restart depends on the router:
// see docs/tasks/configure-bgp.md.
func TestTerminatedWithBFD(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, kind      string
		graceful, keeps bool
	}{
		{"BIRD with bfd on", "bird", false, false},
		{"BIRD with bfd graceful", "bird", true, true},
		{"FRR", "frr", false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			testTerminatedWithBFD(t, test.kind, test.graceful, test.keeps)
		})
	}
}

func testTerminatedWithBFD(t *testing.T, kind string, graceful, keeps bool) {
	r := newRig(t, kind, true)
	c := config(timers)
	c.Neighbors[0].BFDGraceful = graceful
	if err := r.router.Configure(r.ctx, c); err != nil {
		t.Fatal(err)
	}
	s := r.speaker()
	s.Set(wanted(true, true))
	r.settled(true)
	seen := len(r.monitor.Events())
	r.signal(syscall.SIGTERM)
	r.ended()
	r.sees("BFD is down at the router", func() (bool, error) {
		is, err := r.bfd()
		return is.State != "Up", err
	})
	r.start()
	r.settled(true)
	if events := r.changes(seen); (len(events) == 0) != keeps {
		t.Errorf("the router's routes changed: %v", events)
	}
}

// TestWithoutGracefulRestart shows that the tests above can detect a failure.
func TestWithoutGracefulRestart(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string) {
		r := newRig(t, kind, false)
		s := r.speaker()
		s.Set(wanted(false, false))
		r.settled(false)
		r.session(s, "established", established)
		seen := len(r.monitor.Events())
		if err := syscall.Kill(r.child(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.session(s, "the end is reported", func(s routes.Session) bool { return s.Reason == routes.NoBGPProcess })
		r.session(s, "established again", established)
		r.settled(false)
		if events := r.changes(seen); len(events) == 0 || !events[0].Deleted {
			t.Errorf("the router's routes changed: %v", events)
		}
	})
}
