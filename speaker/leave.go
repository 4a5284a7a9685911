package speaker

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// leaveMost is how long a speaker that is to end waits for its successors.
const leaveMost = 5 * time.Second

// Leave makes Run hand over what this node holds and return when the successors answer, or after five seconds; or, after Retain, leave it to
// the kernel and return. The node goes on forwarding meanwhile and afterwards. It never blocks.
func (s *Speaker) Leave() {
	s.ending.Store(true)
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
	for vip, c := range s.said.Claims {
		if now.Before(s.leaveBy) && (c.State == plan.Leaving || answers(c) && s.begins(vip)) {
			return false
		}
	}
	return s.desired == nil || s.said.Leaving
}

// begins tells whether a node of the list has just started: it can take over in a moment.
func (s *Speaker) begins(vip string) bool {
	return slices.ContainsFunc(s.view.VIPs[vip].Nodes, func(node string) bool {
		m := s.view.Members.Peers[node]
		return m.Alive && !m.Away && m.Observer
	})
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
