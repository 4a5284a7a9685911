package advertise

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// ObserveSessions logs and counts changes of BGP sessions, and reports whether there were any. Before the full state is
// published, the sessions are those of an earlier process: without them the node would appear to have no peer.
func (b *BGP) ObserveSessions(now time.Time) bool {
	if b.cfg.Daemon == nil || b.in.Desired == nil {
		return false
	}
	reported, peers := b.cfg.Daemon.Sessions(), b.peers
	if !b.begun {
		peers = b.in.Desired.BGP.Peers
		if reported == nil { // they would come up at the connection to the daemon
			return false
		}
	}
	before := b.sessions
	b.sessions = b.currentSessions(reported, peers, now)
	b.markWithoutBFD(peers, now)
	if maps.Equal(before, b.sessions) {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(b.sessions)) {
		was, had := before[name]
		b.recordSession(name, was, b.sessions[name], had)
	}
	for name := range before {
		if !has(b.sessions, name) {
			b.cfg.Metrics.remove(name)
		}
	}
	return true
}

// currentSessions returns the session of each BGPPeer that selects this node.
func (b *BGP) currentSessions(reported map[string]routes.Session, peers map[string]routes.Peer, now time.Time) map[string]routes.Session {
	out := make(map[string]routes.Session, len(peers)+len(b.in.Desired.PeerProblems))
	for name := range peers {
		session, known := reported[name]
		if session.State != routes.SessionEstablished {
			session.Prefixes = 0 // it counts prefixes that are still to be sent
		}
		if !known {
			session = routes.Session{State: routes.SessionIdle, Since: now}
			if before := b.sessions[name]; before.State == session.State && before.Reason == "" {
				session.Since = before.Since
			}
		}
		out[name] = session
	}
	for name, problem := range b.in.Desired.PeerProblems {
		session, has := out[name]
		switch before := b.sessions[name]; {
		case has && session.State != routes.SessionEstablished && session.Reason != "": // the more serious problem
			continue
		case !has && before.Reason == problem.Reason:
			session = routes.Session{State: routes.SessionIdle, Since: before.Since}
		case !has:
			session = routes.Session{State: routes.SessionIdle, Since: now}
		}
		session.Reason, session.Message = problem.Reason, problem.Message
		out[name] = session
	}
	return out
}

// markWithoutBFD marks sessions that are established without BFD after BFD had time to come up. The time counts from
// when BFD was last up, even if its session flaps in between.
func (b *BGP) markWithoutBFD(peers map[string]routes.Peer, now time.Time) {
	b.lateAt = time.Time{}
	maps.DeleteFunc(b.withoutBFD, func(name string, _ time.Time) bool {
		bfd := b.sessions[name].BFD
		return bfd == "" || bfd == view.BFDUp
	})
	for name, is := range b.sessions {
		if is.BFD == "" || is.BFD == view.BFDUp {
			continue
		}
		since, known := b.withoutBFD[name]
		if !known {
			since = is.BFDSince
			b.withoutBFD[name] = since
		}
		if is.State != routes.SessionEstablished {
			continue
		}
		if is.Since.After(since) {
			since = is.Since
		}
		switch late := since.Add(peers[name].BFD.Patience()); {
		case !now.Before(late):
			is.BFDReason = routes.BFDNotUp
			b.sessions[name] = is
		case b.lateAt.IsZero() || late.Before(b.lateAt):
			b.lateAt = late
		}
	}
}

// recordSession logs that a session came up, went down, or fails for a new reason. It does not log each attempt.
func (b *BGP) recordSession(name string, before, now routes.Session, had bool) {
	b.cfg.Metrics.session(name, now)
	up, was := now.State == routes.SessionEstablished, before.State == routes.SessionEstablished
	args := []any{"peer", name}
	if now.Reason != "" {
		args = append(args, "reason", now.Reason, "message", now.Message)
	}
	switch {
	case was && (!up || now.Changes != before.Changes):
		b.cfg.Log.Warn("BGP session is down", args...)
		if up {
			b.cfg.Log.Info("BGP session is up", "peer", name, "AS", now.PeerASN, "id", now.PeerID)
		}
	case up && !was:
		b.cfg.Log.Info("BGP session is up", "peer", name, "AS", now.PeerASN, "id", now.PeerID)
	case !up && now.Reason != "" && (!had || now.Reason != before.Reason):
		b.cfg.Log.Warn("BGP session not established", args...)
	case up && now.Reason != before.Reason && now.Reason != "":
		b.cfg.Log.Warn("BGP session incomplete", args...)
	}
	if now.BFD != before.BFD && (now.BFD == view.BFDUp || before.BFD == view.BFDUp) {
		b.cfg.Log.Info("BFD session", "peer", name, "state", now.BFD)
	}
	if now.BFDReason != "" && before.BFDReason == "" {
		b.cfg.Log.Warn("BGP session is up without BFD", "peer", name, "reason", now.BFDReason, "state", now.BFD, "message", now.BFDMessage)
	}
}

// Metrics are the metrics of routes and sessions. Without BGP they have no values.
type Metrics struct {
	up, prefixes, bfd *prometheus.GaugeVec
	// problem has a value by reason for a session that is not established.
	problem *prometheus.GaugeVec
	changes *prometheus.CounterVec
}

// NewMetrics returns registered metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "bgp", Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		up:       gauge("session_up", "1 while the BGP session with the peer is established.", "peer"),
		prefixes: gauge("prefixes", "Prefixes that are announced to the peer; 0 while the session is not established.", "peer"),
		bfd:      gauge("bfd_up", "1 while the BFD session with the peer is up; none without BFD.", "peer"),
		problem: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "bgp", Name: "session_problem",
			Help: "1 for the reason for which the BGP session with the peer is not established."}, []string{"peer", "reason"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ironlb", Subsystem: "bgp", Name: "route_changes_total",
			Help: "Routes that were announced, changed and withdrawn, by reason."}, []string{"action", "reason"}),
	}
	reg.MustRegister(m.up, m.prefixes, m.bfd, m.problem, m.changes)
	return m
}

func (m *Metrics) session(peer string, s routes.Session) {
	m.up.WithLabelValues(peer).Set(oneIf(s.State == routes.SessionEstablished))
	m.prefixes.WithLabelValues(peer).Set(float64(s.Prefixes))
	m.problem.DeletePartialMatch(prometheus.Labels{"peer": peer})
	if s.State != routes.SessionEstablished && s.Reason != "" {
		m.problem.WithLabelValues(peer, string(s.Reason)).Set(1)
	}
	if s.BFD == "" {
		m.bfd.DeleteLabelValues(peer)
		return
	}
	m.bfd.WithLabelValues(peer).Set(oneIf(s.BFD == view.BFDUp))
}

func (m *Metrics) remove(peer string) {
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
