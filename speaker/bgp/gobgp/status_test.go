package gobgp

import (
	"testing"
	"testing/synctest"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestReasonOfNone: the reason of the last session's end is shown until there is a reason for the next one.
func TestReasonOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTried(t, 5*time.Second)
		reason := func() view.Reason {
			s.changed(time.Now())
			return s.shown.Reason
		}
		s.expectUp(routes.BFDWentDown)
		if got := reason(); got != routes.BFDWentDown {
			t.Errorf("the reason is %q after it went down", got)
		}
		s.is(api.PeerState_ACTIVE)
		if got := reason(); got != routes.BFDWentDown {
			t.Errorf("the reason is %q while the router is tried", got)
		}
		s.is(api.PeerState_OPENSENT)
		time.Sleep(settled)
		if got := reason(); got != routes.NoAnswer {
			t.Errorf("the reason is %q while the router sends nothing", got)
		}
	})
}
