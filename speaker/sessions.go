package speaker

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/plan"
)

// noteSessions logs and counts changes of BGP sessions, and reports whether there were any.
func (s *Speaker) noteSessions(now time.Time) bool {
	if s.cfg.BGP == nil || !s.bgp.begun {
		return false
	}
	before := s.bgp.sessions
	s.bgp.sessions = s.sessions(now)
	s.findUnwatched(now)
	if maps.Equal(before, s.bgp.sessions) {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(s.bgp.sessions)) {
		was, had := before[name]
		s.noteSession(name, was, s.bgp.sessions[name], had)
	}
	for name := range before {
		if !has(s.bgp.sessions, name) {
			s.cfg.Metrics.bgp.forget(name)
		}
	}
	return true
}

// sessions returns the session of each BGPPeer that selects this node.
func (s *Speaker) sessions(now time.Time) map[string]plan.Session {
	reported := s.cfg.BGP.Sessions()
	out := make(map[string]plan.Session, len(s.bgp.peers)+len(s.desired.PeerProblems))
	for name := range s.bgp.peers {
		session, known := reported[name]
		if session.State != plan.SessionEstablished {
			session.Prefixes = 0 // it counts prefixes that are still to be sent
		}
		if !known {
			session = plan.Session{State: plan.SessionIdle, Since: now}
			if before := s.bgp.sessions[name]; before.State == session.State && before.Reason == "" {
				session.Since = before.Since
			}
		}
		out[name] = session
	}
	for name, problem := range s.desired.PeerProblems {
		session, speaks := out[name]
		switch before := s.bgp.sessions[name]; {
		case speaks && session.State != plan.SessionEstablished && session.Reason != "": // the more serious problem
			continue
		case !speaks && before.Reason == problem.Reason:
			session = plan.Session{State: plan.SessionIdle, Since: before.Since}
		case !speaks:
			session = plan.Session{State: plan.SessionIdle, Since: now}
		}
		session.Reason, session.Message = problem.Reason, problem.Message
		out[name] = session
	}
	return out
}

// findUnwatched marks sessions that are established without BFD after BFD had time to come up. The time counts from
// when BFD was last up, even if its session flaps in between.
func (s *Speaker) findUnwatched(now time.Time) {
	b := &s.bgp
	b.lateAt = time.Time{}
	maps.DeleteFunc(b.unwatched, func(name string, _ time.Time) bool {
		bfd := b.sessions[name].BFD
		return bfd == "" || bfd == plan.BFDUp
	})
	for name, is := range b.sessions {
		if is.BFD == "" || is.BFD == plan.BFDUp {
			continue
		}
		since, known := b.unwatched[name]
		if !known {
			since = is.BFDSince
			b.unwatched[name] = since
		}
		if is.State != plan.SessionEstablished {
			continue
		}
		if is.Since.After(since) {
			since = is.Since
		}
		switch late := since.Add(b.peers[name].BFD.Patience()); {
		case !now.Before(late):
			is.BFDReason = plan.BFDNotUp
			b.sessions[name] = is
		case b.lateAt.IsZero() || late.Before(b.lateAt):
			b.lateAt = late
		}
	}
}

// noteSession logs that a session came up, went down, or fails for a new reason. It does not log each attempt.
func (s *Speaker) noteSession(name string, before, now plan.Session, had bool) {
	s.cfg.Metrics.bgp.session(name, now)
	up, was := now.State == plan.SessionEstablished, before.State == plan.SessionEstablished
	args := []any{"peer", name}
	if now.Reason != "" {
		args = append(args, "reason", now.Reason, "message", now.Message)
	}
	switch {
	case was && (!up || now.Changes != before.Changes):
		s.cfg.Log.Warn("BGP session is down", args...)
		if up {
			s.cfg.Log.Info("BGP session is up", "peer", name, "AS", now.PeerASN, "id", now.PeerID)
		}
	case up && !was:
		s.cfg.Log.Info("BGP session is up", "peer", name, "AS", now.PeerASN, "id", now.PeerID)
	case !up && now.Reason != "" && (!had || now.Reason != before.Reason):
		s.cfg.Log.Warn("no BGP session", args...)
	case up && now.Reason != before.Reason && now.Reason != "":
		s.cfg.Log.Warn("BGP session lacks something", args...)
	}
	if now.BFD != before.BFD && (now.BFD == plan.BFDUp || before.BFD == plan.BFDUp) {
		s.cfg.Log.Info("BFD session", "peer", name, "state", now.BFD)
	}
	if now.BFDReason != "" && before.BFDReason == "" {
		s.cfg.Log.Warn("BGP session is up without BFD", "peer", name, "reason", now.BFDReason, "state", now.BFD, "message", now.BFDMessage)
	}
}

// reportRoutes counts the addresses of the work by outcome, and logs contradicting advertisements.
func (s *Speaker) reportRoutes(todo *work) {
	for addr := range todo.addrs {
		routed, covered := s.desired.Routed[addr]
		s.bgp.routed.set(addr, routed.Reason, covered)
	}
	s.noteUnserved(todo.addrs)
	for prefs := range s.desired.LocalPrefs {
		if !has(s.bgp.prefs, prefs) {
			s.cfg.Log.Warn("two BGPAdvertisements tell an internal peer the same prefix with different localPref, of which the lower one counts: make them equal",
				"lower", prefs.Lower, "higher", prefs.Higher, "prefixes", s.desired.LocalPrefs[prefs])
		}
	}
	if !maps.Equal(s.bgp.prefs, s.desired.LocalPrefs) {
		s.bgp.prefs = maps.Clone(s.desired.LocalPrefs)
	}
}

// bgpMetrics are the metrics of routes and sessions. Without BGP they have no values.
type bgpMetrics struct {
	up, prefixes, bfd *prometheus.GaugeVec
	// problem has a value by reason for a session that is not established.
	problem   *prometheus.GaugeVec
	changes   *prometheus.CounterVec
	addresses *prometheus.GaugeVec
}

func newBGPMetrics(reg prometheus.Registerer) bgpMetrics {
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "bgp", Name: name, Help: help}, []string{label})
	}
	m := bgpMetrics{
		up:       gauge("session_up", "1 while the BGP session with the peer is established.", "peer"),
		prefixes: gauge("prefixes", "Prefixes that are announced to the peer; 0 while the session is not established.", "peer"),
		bfd:      gauge("bfd_up", "1 while the BFD session with the peer is up; none without BFD.", "peer"),
		problem: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "bgp", Name: "session_problem",
			Help: "1 for the reason for which the BGP session with the peer is not established."}, []string{"peer", "reason"}),
		addresses: gauge("addresses", "Addresses that a BGPAdvertisement covers, by what became of them on this node.", "reason"),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ironlb", Subsystem: "bgp", Name: "route_changes_total",
			Help: "Routes that were announced, changed and withdrawn, by reason."}, []string{"action", "reason"}),
	}
	reg.MustRegister(m.up, m.prefixes, m.bfd, m.problem, m.addresses, m.changes)
	return m
}

func (m bgpMetrics) session(peer string, s plan.Session) {
	m.up.WithLabelValues(peer).Set(oneIf(s.State == plan.SessionEstablished))
	m.prefixes.WithLabelValues(peer).Set(float64(s.Prefixes))
	m.problem.DeletePartialMatch(prometheus.Labels{"peer": peer})
	if s.State != plan.SessionEstablished && s.Reason != "" {
		m.problem.WithLabelValues(peer, string(s.Reason)).Set(1)
	}
	if s.BFD == "" {
		m.bfd.DeleteLabelValues(peer)
		return
	}
	m.bfd.WithLabelValues(peer).Set(oneIf(s.BFD == plan.BFDUp))
}

func (m bgpMetrics) forget(peer string) {
	for _, vec := range []*prometheus.GaugeVec{m.up, m.prefixes, m.bfd} {
		vec.DeleteLabelValues(peer)
	}
	m.problem.DeletePartialMatch(prometheus.Labels{"peer": peer})
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
