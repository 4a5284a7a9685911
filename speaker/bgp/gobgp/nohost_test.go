package gobgp

import (
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
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
		{plan.NoAnswer, false, 0, plan.NoAnswer},
		{plan.Unreachable, true, time.Second, plan.Unreachable},
		{plan.NoAnswer, false, 2 * time.Second, plan.Unreachable},
		{plan.NoAnswer, false, 7 * time.Second, plan.Unreachable},
		{plan.NoAnswer, false, 2 * time.Second, plan.NoAnswer}, // now a host exists, and it is silent
		{plan.Unreachable, true, time.Second, plan.Unreachable},
		{plan.Refused, false, time.Second, plan.Refused},
	} {
		now = now.Add(step.after)
		if x.notConnected(cause{step.c, "words"}, step.noHost, now); x.fail.reason != step.want || x.failed != now {
			t.Errorf("%+v: %+v", step, x.fail)
		}
	}
}
