package bgpstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// summary aggregates the sessions of a peer over all nodes.
type summary struct {
	selected  bool // by nodeSelectors
	nodes, up int
	// down and unknown are the nodes without a session and those in an unknown state, each with details.
	down, unknown []condition.Name
	reasons       []string // of those that are down
	// duplicate are the nodes on which an older BGPPeer, or the first by name, has the session with the address.
	duplicate []condition.Name
	// lacks are the nodes whose session does not have everything that the peer configures.
	lacks []condition.Name
}

// absences records since when speakers are absent.
type absences struct {
	since map[string]time.Time
}

// Reasons of the conditions of BGPPeers, in addition to those that the speakers report for a session.
const (
	reasonNoBFDProfile = "NoBFDProfile"
	reasonDuplicate    = "Duplicate" // also of a session
	reasonEstablished  = "Established"
	reasonNoNode       = "NoNode"
	reasonSessionsDown = "SessionsDown"
	reasonNotReported  = "NotReported"
)

// evaluatePeer returns the conditions Ready and Established of a peer, and the count of established and expected
// sessions. last is the profile in force in place of a deleted one, as JSON, empty for none.
func evaluatePeer(peer *v1alpha1.BGPPeer, last string, o *bgpObjects) (ready, established metav1.Condition, sessions string) {
	var read advertisement.Reader
	selectors := read.All("nodeSelectors", peer.Spec.NodeSelectors)
	ready = metav1.Condition{Type: condition.Ready, Status: metav1.ConditionTrue, Reason: condition.ReasonRead, Message: "The peer is in use", ObservedGeneration: peer.Generation}
	sum := summary{selected: len(selectors) > 0}
	for _, n := range o.nodes {
		if !advertisement.MatchAny(selectors, n.Labels) {
			continue
		}
		i := slices.IndexFunc(o.speakers.Items, func(s v1alpha1.SpeakerStatus) bool { return s.Name == n.Name })
		if i < 0 {
			continue // the node runs no speaker
		}
		sum.add(n, o.absent[n.Name], o.speakers.Items[i].Status.BGP, peer.Name)
	}
	profile := slices.IndexFunc(o.profiles.Items, func(p v1alpha1.BFDProfile) bool { return p.Name == peer.Spec.BFDProfile })
	switch err := read.Err(); {
	case err != nil:
		ready.Status, ready.Reason = metav1.ConditionFalse, condition.ReasonInvalidSelector
		ready.Message = fmt.Sprintf("%v. The selector matches nothing until it is fixed", err)
	case peer.Spec.BFDProfile != "" && profile < 0:
		ready.Status, ready.Reason = metav1.ConditionFalse, reasonNoBFDProfile
		ready.Message = fmt.Sprintf("spec.bfdProfile: there is no BFDProfile %s: create it, or name another one. ", peer.Spec.BFDProfile)
		if last == "" {
			ready.Message += "There is no session until then"
		} else {
			ready.Message += "Its last version stays in force until then"
		}
	case len(sum.duplicate) > 0:
		ready.Status, ready.Reason = metav1.ConditionFalse, reasonDuplicate
		ready.Message = "spec.peerAddress: there is no session on " + condition.Some(sum.duplicate)
	case len(read.Repeated) > 0:
		ready.Status, ready.Reason = metav1.ConditionFalse, condition.ReasonRepeatedSelector
		ready.Message = strings.Join(read.Repeated, "; ") + ". The peer is in use"
	case profile >= 0:
		if text := otherTTL(peer, &o.profiles.Items[profile]); text != "" {
			ready.Message += ". " + text
		}
	}
	established = sum.condition()
	established.ObservedGeneration = peer.Generation
	return ready, established, fmt.Sprintf("%d/%d", sum.up, sum.nodes)
}

// otherTTL explains that BFD with the peer uses another minimum TTL than the profile's minimumTtl, empty if not.
// speaker/kube computes the effective one (profileObject.minimumTTL).
func otherTTL(peer *v1alpha1.BGPPeer, profile *v1alpha1.BFDProfile) string {
	s, least := &peer.Spec, profile.Spec.MinimumTTL
	linkLocal := strings.Contains(s.PeerAddress, "%")
	switch {
	case least == nil:
		return ""
	case !linkLocal && s.TTLSecurity && *least < 255:
		return fmt.Sprintf("minimumTtl %d of BFDProfile %s counts as 255, because ttlSecurity requires it: write 255, in a separate profile of the peer", *least, profile.Name)
	case !linkLocal && (s.TTLSecurity || s.EBGPMultiHop || internal(peer)):
		return ""
	}
	text := fmt.Sprintf("minimumTtl %d of BFDProfile %s has no effect: over one hop BFD accepts only a TTL of 255 (RFC 5881, 5). Name a profile without it", *least, profile.Name)
	if !linkLocal {
		text += ", or, if the router is further away, set ebgpMultiHop"
	}
	return text
}

// add counts a node with the BGP status of its speaker, which may be absent.
func (s *summary) add(n *v1.Node, absent v1alpha1.Absence, bgp *v1alpha1.BGPStatus, peer string) {
	s.nodes++
	var session *v1alpha1.SessionStatus
	if bgp != nil {
		if i := slices.IndexFunc(bgp.Sessions, func(st v1alpha1.SessionStatus) bool { return st.Peer == peer }); i >= 0 {
			session = &bgp.Sessions[i]
		}
	}
	switch {
	case watch.StatusUnknown(n):
		s.unknown = append(s.unknown, condition.Name(n.Name+": the node's Ready condition is Unknown"))
	case absent == v1alpha1.AbsenceStopped:
		s.unknown = append(s.unknown, condition.Name(n.Name+": its speaker has been stopped"))
	case absent != "":
		s.unknown = append(s.unknown, condition.Name(n.Name+": its speaker is unreachable from the others"))
	case session == nil:
		s.unknown = append(s.unknown, condition.Name(n.Name+": its speaker reports no session; does it run with --bgp-socket?"))
	case session.State == v1alpha1.SessionEstablished:
		s.up++
		if session.Reason == v1alpha1.ReasonNotConfigured {
			s.lacks = append(s.lacks, condition.Name(n.Name+": "+session.Message))
		}
		if bfd := session.BFD; bfd != nil && bfd.Reason != "" {
			s.lacks = append(s.lacks, condition.Name(n.Name+": BFD is not up: "+cmp.Or(bfd.Message, bfd.Reason)))
		}
	default:
		reason := cmp.Or(session.Reason, string(session.State))
		what := n.Name + ": " + reason
		if session.Message != "" {
			what += ": " + session.Message
		}
		if reason == reasonDuplicate {
			s.duplicate = append(s.duplicate, condition.Name(n.Name+": "+session.Message))
		}
		s.down, s.reasons = append(s.down, condition.Name(what)), append(s.reasons, reason)
	}
}

// condition returns Established.
func (s *summary) condition() metav1.Condition {
	slices.Sort(s.down)
	slices.Sort(s.unknown)
	slices.Sort(s.reasons)
	slices.Sort(s.lacks)
	c := metav1.Condition{Type: v1alpha1.ConditionEstablished, Status: metav1.ConditionTrue, Reason: reasonEstablished}
	c.Message = fmt.Sprintf("%d of %d nodes", s.up, s.nodes)
	var problems []string
	if len(s.down) > 0 {
		problems = append(problems, condition.Some(s.down))
	}
	if len(s.unknown) > 0 {
		problems = append(problems, condition.Some(s.unknown))
	}
	switch reasons := slices.Compact(s.reasons); {
	case s.nodes == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonNoNode, "No speaker has reported yet"
		if s.selected {
			c.Message = "No node with a speaker matches spec.nodeSelectors: widen them, or label a node"
		}
		return c
	case len(reasons) == 1:
		c.Status, c.Reason = metav1.ConditionFalse, reasons[0]
	case len(reasons) > 1:
		c.Status, c.Reason = metav1.ConditionFalse, reasonSessionsDown
	case len(s.unknown) > 0:
		c.Status, c.Reason = metav1.ConditionUnknown, reasonNotReported
	case len(s.lacks) > 0:
		problems = []string{"incomplete: " + condition.Some(s.lacks)}
	default:
		return c
	}
	c.Message += ": " + strings.Join(problems, ", ")
	return c
}

// internal reports whether the peer is internal (iBGP) and therefore receives localPref.
func internal(p *v1alpha1.BGPPeer) bool {
	return p.Spec.DynamicASN == v1alpha1.DynamicInternal || p.Spec.PeerASN != nil && *p.Spec.PeerASN == p.Spec.MyASN
}

// evaluate takes the speakers that are absent now. It returns those that count and the delay until the next evaluation,
// 0 for none. Speakers absent at the first call count at once: an earlier process may have reported them already.
func (a *absences) evaluate(absent map[string]v1alpha1.Absence, now time.Time) (counts map[string]v1alpha1.Absence, recheck time.Duration) {
	first, before := a.since == nil, a.since
	a.since, counts = map[string]time.Time{}, map[string]v1alpha1.Absence{}
	for node, why := range absent {
		at, was := before[node]
		if !was && !first {
			at = now
		}
		a.since[node] = at
		if left := at.Add(watch.AbsentFor).Sub(now); left <= 0 {
			counts[node] = why
		} else if recheck == 0 || left < recheck {
			recheck = left
		}
	}
	return counts, recheck
}
