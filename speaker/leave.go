package speaker

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// leaveMost is how long a speaker that is to end waits for its successors.
const leaveMost = 5 * time.Second

// Leave makes Run hand over what this node holds and return when the successors answer, or after five seconds. The node goes on
// forwarding meanwhile and afterwards. It never blocks.
func (s *Speaker) Leave() {
	s.leaving.Store(true)
	s.cfg.Kick.Now()
}

// left tells whether nothing is to be waited for any more.
func (s *Speaker) left(now time.Time) bool {
	if !s.leaving.Load() {
		return false
	}
	if s.leaveBy.IsZero() {
		s.leaveBy = now.Add(leaveMost)
	}
	for _, c := range s.said.Claims {
		if c.State == plan.Leaving && now.Before(s.leaveBy) {
			return false
		}
	}
	return s.desired == nil || s.said.Leaving
}

// goodbye stops answering for what nobody took, and says so.
func (s *Speaker) goodbye() {
	if s.desired == nil {
		return
	}
	s.target = map[netip.Addr]plan.Announcement{}
	s.tell(newWork())
	s.cfg.Detector.Say(plan.Word{Leaving: true})
}
