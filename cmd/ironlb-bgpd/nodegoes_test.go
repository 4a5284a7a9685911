package main

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/router"
)

// TestTerminatedWhileDecommissioning: when the node is decommissioned, the router gets GRACEFUL_SHUTDOWN also with
// graceful restart, and two seconds later has no route any more.
func TestTerminatedWhileDecommissioning(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string) {
		r := newRig(t, kind, true)
		s := r.speaker()
		c := wanted(true, true)
		c.NodeDecommissioning = true
		s.Set(c)
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
			if took := e.At.Sub(asked); took < 1900*time.Millisecond {
				t.Errorf("%v was withdrawn after %v", vip, took)
			}
		}
		r.ended()
		if err := r.process.Wait(); err != nil {
			t.Errorf("it ended: %v", err)
		}
		for _, e := range r.changes(seen) {
			if !e.Deleted && e.At.Sub(asked) > 1900*time.Millisecond {
				t.Errorf("a route came back: %v", e)
			}
		}
	})
}
