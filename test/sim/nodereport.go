package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/report"
)

// nodeReport models kube.NodeReporter, which writes the SpeakerStatus on change and at most once a second, and the
// Events about unreachable nodes.
type nodeReport struct {
	written string
	at      int64 // of the last write
	due     bool  // a write is scheduled
	// unreachable are the unreachable nodes; true if this speaker has written an Event about that.
	unreachable map[string]bool
}

// nodeEvery is the minimum interval between two writes.
const nodeEvery = time.Second

// reportNode schedules the write of what differs.
func (s *Speaker) reportNode() {
	s.reportReach()
	if s.nodeReport.due {
		return
	}
	s.nodeReport.due = true
	c, boot := s.cluster, s.boot
	c.After(max(0, nodeEvery-time.Duration(c.now-s.nodeReport.at)), func() {
		if s.boot != boot || s.core == nil {
			return
		}
		s.nodeReport.due = false
		if text := s.nodeStatus(); text != s.nodeReport.written && !c.api.down {
			s.nodeReport.written, s.nodeReport.at = text, c.now
			c.api.Written.Speakers++
		}
	})
}

// nodeStatus returns what changes in a SpeakerStatus, as text.
func (s *Speaker) nodeStatus() string {
	members := s.members()
	listed := report.Listed(s.Name, members)
	var b strings.Builder
	fmt.Fprint(&b, len(s.holds), s.prober.decided.CutOff)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if listed(name) {
			fmt.Fprint(&b, " ", name, " ", members[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.prober.decided.Unreachable)) {
		if listed(name) {
			fmt.Fprint(&b, " unreachable ", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.prober.decided.Unwitnessed)) {
		if listed(name) {
			fmt.Fprint(&b, " without witness ", name)
		}
	}
	return b.String()
}

func (s *Speaker) members() map[string]report.MemberState {
	members := make(map[string]report.MemberState, len(s.view.Members.Peers))
	for name, m := range s.view.Members.Peers {
		members[name] = report.StateOf(m, s.view.Members.Segments)
	}
	return members
}

// reportReach counts the Events about unreachable nodes.
func (s *Speaker) reportReach() {
	r := &s.nodeReport
	for name := range s.prober.decided.Unreachable {
		if _, decided := r.unreachable[name]; decided {
			continue
		}
		if r.unreachable == nil {
			r.unreachable = map[string]bool{}
		}
		writes, settled := report.WritesReach(s.Name, name, report.NodeStatus{
			Members: s.members(), Reach: s.prober.decided, Dead: s.view.Members.Dead,
		}, s.time())
		if !settled {
			continue
		}
		if r.unreachable[name] = writes; writes {
			s.cluster.api.Written.Events++
		}
	}
	for name, written := range r.unreachable {
		if _, still := s.prober.decided.Unreachable[name]; !still {
			delete(r.unreachable, name)
			if written {
				s.cluster.api.Written.Events++
			}
		}
	}
}
