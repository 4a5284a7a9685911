package speaker

import (
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// handoverTimeout is how long a stopping speaker waits for its successors.
const handoverTimeout = 5 * time.Second

// Leave makes Run hand over the addresses that this node owns and return once the successors announce them, or after
// five seconds. After Retain it leaves them to the kernel and returns. The node continues to forward during and after
// that. It never blocks.
func (s *Speaker) Leave() {
	s.ending.Store(true)
	s.cfg.Trigger.Now()
}

// handoverDone reports whether there is nothing more to wait for.
func (s *Speaker) handoverDone(now time.Time) bool {
	if !s.leaving.Load() {
		return false
	}
	if s.leaveBy.IsZero() {
		s.leaveBy = now.Add(handoverTimeout)
	}
	for vip, c := range s.published.Claims {
		if now.Before(s.leaveBy) && (c.State == view.HandingOver || c.Announces() && s.successorStarting(vip)) {
			return false
		}
	}
	return s.desired == nil || s.published.Leaving
}

// successorStarting reports whether a listed node has just started: it can take over soon.
func (s *Speaker) successorStarting(vip string) bool {
	return slices.ContainsFunc(s.view.VIPs[vip].Nodes, func(node string) bool {
		m := s.view.Members.Peers[node]
		return m.Alive && !m.Away && m.Observer
	})
}

// stopAnnouncing stops the remaining announcements and publishes the end of this process.
func (s *Speaker) stopAnnouncing() {
	if s.desired == nil {
		return
	}
	s.l2.WithdrawAll()
	s.cfg.Detector.Publish(view.LocalState{Leaving: true, Direct: s.published.Direct})
}
