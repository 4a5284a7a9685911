package ccm

import (
	"time"
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// absentFor is how long a speaker must be absent to count. A restarted or upgraded speaker returns earlier.
const absentFor = 30 * time.Second

// absences records since when speakers are absent.
type absences struct {
	since map[string]time.Time
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
		if left := at.Add(absentFor).Sub(now); left <= 0 {
			counts[node] = why
		} else if recheck == 0 || left < recheck {
			recheck = left
		}
	}
	return counts, recheck
}

// recordAbsent adds the absent speakers to o. Reports of speakers about each other count only if the node's status is
// known.
func (b *bgpStatus) recordAbsent(o *bgpObjects) {
	live := make(map[string]bool, len(o.nodes))
	for _, n := range o.nodes {
		live[n.Name] = !statusUnknown(n)
	}
	absent := v1alpha1.Absent(o.speakers.Items, func(node string) bool { return live[node] })
	counts, recheck := b.absences.evaluate(absent, time.Now())
	o.absent = counts
	b.due.Stop()
	if recheck > 0 {
		b.due.Reset(recheck)
	}
}

// statusUnknown reports whether the Ready condition of a node is Unknown: the last report of its speaker is then
// outdated.
func statusUnknown(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionUnknown
		}
	}
	return false
}

// trimSpeaker keeps three parts of a SpeakerStatus: its BGP status, whether the node forwards, and the states of the
// other members. Every speaker lists every other one, so the node names are shared.
func trimSpeaker(obj any) (any, error) {
	o, ok := obj.(*v1alpha1.SpeakerStatus)
	if !ok {
		return obj, nil
	}
	o.SetManagedFields(nil)
	members := make([]v1alpha1.MemberStatus, len(o.Status.Members))
	for i, m := range o.Status.Members {
		members[i] = v1alpha1.MemberStatus{Node: unique.Make(m.Node).Value(), State: unique.Make(m.State).Value()}
	}
	o.Status = v1alpha1.SpeakerStatusStatus{
		DataPlane: v1alpha1.DataPlaneStatus{Healthy: o.Status.DataPlane.Healthy},
		BGP:       o.Status.BGP, Gateways: o.Status.Gateways, Members: members, Stopped: o.Status.Stopped,
	}
	return o, nil
}

var _ cache.TransformFunc = trimSpeaker
