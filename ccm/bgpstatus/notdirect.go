package bgpstatus

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// notDirect are the addresses that only BGP announces and that nodes forward to endpoints, although their Services are
// to be forwarded directly. For the addresses of VirtualIPs the owner reports it.
type notDirect struct {
	// since is when each was first found so: the zero time if an earlier process may have reported it.
	since map[netip.Addr]time.Time
}

// update returns the warning about each address whose state has lasted, and the delay until the next evaluation, 0 for
// none.
func (n *notDirect) update(o *bgpObjects, now time.Time) (out map[netip.Addr]condition.Problem, recheck time.Duration) {
	first, before := n.since == nil, n.since
	n.since, out = map[netip.Addr]time.Time{}, map[netip.Addr]condition.Problem{}
	for addr, found := range fallbacks(o) {
		at, was := before[addr]
		if !was && !first {
			at = now
		}
		n.since[addr] = at
		if left := at.Add(watch.UnannouncedFor).Sub(now); left > 0 {
			if recheck == 0 || left < recheck {
				recheck = left
			}
			continue
		}
		more := ""
		if found.nodes > 1 {
			more = fmt.Sprintf(" and %d more", found.nodes-1)
		}
		message := fmt.Sprintf("%v by BGP: node %s%s: %s", addr, found.node, more, found.message)
		out[addr] = condition.Problem{Reason: found.reason, Message: message}
	}
	return out, recheck
}

// fallback is why nodes forward an address to endpoints, according to the first of them by name.
type fallback struct {
	node, reason, message string
	nodes                 int
}

// fallbacks returns the reports of the present speakers, by address. A speaker lists the lowest addresses of each
// reason.
func fallbacks(o *bgpObjects) map[netip.Addr]fallback {
	out := map[netip.Addr]fallback{}
	speakers := slices.Clone(o.speakers.Items)
	slices.SortFunc(speakers, func(a, b v1alpha1.SpeakerStatus) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range speakers {
		if s.Status.BGP == nil || o.absent[s.Name] != "" {
			continue
		}
		for _, of := range s.Status.BGP.NotDirect {
			for _, addr := range watch.Addresses(of.Addresses) {
				found, known := out[addr]
				if !known {
					found = fallback{node: s.Name, reason: of.Reason, message: of.Message}
				}
				found.nodes++
				out[addr] = found
			}
		}
	}
	return out
}
