package gobgp

import (
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestNoHost: a connection attempt that ends before ARP does not hide for a while that no host answers.
func TestNoHost(t *testing.T) {
	var x session
	now := time.Now()
	for _, step := range []struct {
		c      view.Reason
		noHost bool
		after  time.Duration
		want   view.Reason
	}{
		{routes.NoAnswer, false, 0, routes.NoAnswer},
		{routes.Unreachable, true, time.Second, routes.Unreachable},
		{routes.NoAnswer, false, 2 * time.Second, routes.Unreachable},
		{routes.NoAnswer, false, 7 * time.Second, routes.Unreachable},
		{routes.NoAnswer, false, 2 * time.Second, routes.NoAnswer}, // now a host exists, and it is silent
		{routes.Unreachable, true, time.Second, routes.Unreachable},
		{routes.Refused, false, time.Second, routes.Refused},
	} {
		now = now.Add(step.after)
		if x.notConnected(cause{step.c, "words"}, step.noHost, now); x.fail.reason != step.want || x.failed != now {
			t.Errorf("%+v: %+v", step, x.fail)
		}
	}
}
