package speaker

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// leaveMost is how long a stopping speaker waits for its successors.
const leaveMost = 5 * time.Second

// Leave makes Run hand over the addresses that this node owns and return once the successors announce them, or after
// five seconds. After Retain it leaves them to the kernel and returns. The node continues to forward during and after
// that. It never blocks.
func (s *Speaker) Leave() {
	s.ending.Store(true)
	s.cfg.Kick.Now()
}

// left reports whether there is nothing more to wait for.
func (s *Speaker) left(now time.Time) bool {
	if !s.leaving.Load() {
		return false
	}
	if s.leaveBy.IsZero() {
		s.leaveBy = now.Add(leaveMost)
	}
	for vip, c := range s.said.Claims {
		if now.Before(s.leaveBy) && (c.State == plan.Leaving || answers(c) && s.begins(vip)) {
			return false
		}
	}
	return s.desired == nil || s.said.Leaving
}

// begins reports whether a listed node has just started: it can take over soon.
func (s *Speaker) begins(vip string) bool {
	return slices.ContainsFunc(s.view.VIPs[vip].Nodes, func(node string) bool {
		m := s.view.Members.Peers[node]
		return m.Alive && !m.Away && m.Observer
	})
}

// goodbye stops the remaining announcements and publishes the end of this process.
func (s *Speaker) goodbye() {
	if s.desired == nil {
		return
	}
	s.target = map[netip.Addr]plan.Announcement{}
	s.tell(newWork())
	s.cfg.Detector.Say(plan.Word{Leaving: true})
}
