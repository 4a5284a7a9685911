package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Reasons of the Events about BGPPeers, in addition to those of routes.Session.
const (
	// SessionUp: a session of this node came up.
	SessionUp = "SessionUp"
	// SessionDown: an established session of this node ended.
	SessionDown = "SessionDown"
	// BFDUp: BFD of a session came up. The end of the BGP session also reports that BFD went down.
	BFDUp = "BFDUp"
)

// bgpStatusOf returns the status of the sessions; nil for none.
func bgpStatusOf(sessions map[string]routes.Session, families map[string]report.SessionFamilies, peers cache.Store) *v1alpha1.BGPStatus {
	if len(sessions) == 0 {
		return nil
	}
	out, up := &v1alpha1.BGPStatus{}, 0
	for _, name := range slices.Sorted(maps.Keys(sessions)) {
		s := sessions[name]
		state := v1alpha1.SessionState(s.State)
		if state == "" { // never tried
			state = v1alpha1.SessionState(routes.SessionIdle)
		}
		to := v1alpha1.SessionStatus{
			Peer: name, State: state, Since: timeOf(s.Since), Reason: string(s.Reason), Message: s.Message,
			Prefixes: int32(s.Prefixes), PeerASN: int64(s.PeerASN),
		}
		if families[name].IPv4 {
			to.Families = append(to.Families, corev1.IPv4Protocol)
		}
		if families[name].IPv6 {
			to.Families = append(to.Families, corev1.IPv6Protocol)
		}
		if peer := peerNamed(peers, name); peer != nil {
			to.Address = peer.Spec.PeerAddress
		}
		if s.PeerID.IsValid() {
			to.PeerID = s.PeerID.String()
		}
		if s.BFD != "" {
			to.BFD = &v1alpha1.BFDStatus{State: v1alpha1.BFDState(s.BFD), Since: timeOf(s.BFDSince), Reason: string(s.BFDReason), Message: s.BFDMessage}
		}
		if s.State == routes.SessionEstablished {
			up++
		}
		out.Sessions = append(out.Sessions, to)
	}
	out.Established = fmt.Sprintf("%d/%d", up, len(sessions))
	return out
}

// timeOf returns the time as it is stored, in full seconds; nil for none.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	at := metav1.NewTime(t).Rfc3339Copy()
	return &at
}

// peerNamed returns the BGPPeer, nil if it does not exist.
func peerNamed(peers cache.Store, name string) *v1alpha1.BGPPeer {
	if peers == nil {
		return nil
	}
	obj, exists, err := peers.GetByKey(name)
	if err != nil || !exists {
		return nil
	}
	return obj.(*v1alpha1.BGPPeer)
}

// recordedSession is what has been reported about a session.
type recordedSession struct {
	routes.Session
	// reason and message explain why it is not established.
	reason  view.Reason
	message string
}

// Sessions writes Events about BGPPeers: a session of this node was established, ended, cannot be established, or is
// without BFD, and why. It also reports that BFD came up. Each call passes the full set.
func (e *Events) Sessions(peers cache.Store, sessions map[string]routes.Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers, e.latest = peers, sessions
	e.recordSessions()
}

// recordSessions reports what changed in the latest sessions. Calls before Run are reported by Run.
func (e *Events) recordSessions() {
	if !e.running || e.latest == nil {
		return
	}
	peers, sessions := e.peers, e.latest
	now := make(map[string]recordedSession, len(sessions))
	for name, s := range sessions {
		before, was := e.sessions[name]
		now[name] = e.session(peerNamed(peers, name), s, before, was)
	}
	e.sessions = now
}

// session reports what changed in one session, and returns what has been reported about it.
func (e *Events) session(peer *v1alpha1.BGPPeer, s routes.Session, before recordedSession, was bool) recordedSession {
	up, wasUp := s.State == routes.SessionEstablished, before.State == routes.SessionEstablished
	event := func(kind, reason, text string) {
		if peer != nil {
			e.recorder.Event(peer, kind, reason, "node "+e.node+": "+text)
		}
	}
	recorded := recordedSession{Session: s, reason: before.reason, message: before.message}
	switch {
	case up:
		recorded.reason, recorded.message = "", ""
		if s.Reason == routes.NotConfigured { // the session works, but not all of the BGPPeer's spec; any other reason is outdated
			recorded.reason, recorded.message = s.Reason, s.Message
			if before.reason != s.Reason || before.message != s.Message {
				event(corev1.EventTypeWarning, string(s.Reason), s.Message)
			}
		}
		again := wasUp && s.Changes != before.Changes // it was down in between
		if again || was && !wasUp || !was && s.Since.After(e.began) {
			text := "the session is established"
			if again && s.Message != "" && s.Reason != routes.NotConfigured {
				text += " again, after: " + s.Message
			}
			event(corev1.EventTypeNormal, SessionUp, text)
		}
	case wasUp:
		recorded.reason, recorded.message = s.Reason, s.Message
		event(corev1.EventTypeWarning, SessionDown, "the session ended"+because(s.Reason, s.Message))
	case s.Reason != "" && (s.Reason != before.reason || s.Message != before.message):
		recorded.reason, recorded.message = s.Reason, s.Message
		event(corev1.EventTypeWarning, string(s.Reason), "no session"+because(s.Reason, s.Message))
	}
	switch {
	case s.BFD == view.BFDUp && (was && before.BFD != view.BFDUp || !was && s.BFDSince.After(e.began)):
		event(corev1.EventTypeNormal, BFDUp, "BFD is up")
	case s.BFDReason != "" && before.BFDReason == "": // a changed reason is only in the status
		event(corev1.EventTypeWarning, string(s.BFDReason), "the session is established, but BFD is not up, and nothing watches the path"+because("", s.BFDMessage))
	}
	return recorded
}

// because returns why a session is not established or up, if known.
func because(reason view.Reason, message string) string {
	if why := cmp.Or(message, string(reason)); why != "" {
		return ": " + why
	}
	return ""
}
