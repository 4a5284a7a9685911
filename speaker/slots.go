package speaker

import (
	"maps"
	"slices"
	"time"
)

const (
	// slotsDifferAfter is how long the slots of another node differ before that is reported. A change reaches the nodes
	// one after another, and a node that starts or joins needs some seconds.
	slotsDifferAfter = 10 * time.Second
	// slotsSamples is how many digests of another node are kept for each period.
	slotsSamples = 2 * int(slotsDifferAfter/time.Second)
)

// agreement compares the slots of direct forwarding of this node with those of the others, by their digests. While they
// change all the time, the digests of two nodes may never be equal at once, although they agree: one is behind. So a
// digest of another node counts as equal to any that this node has had, and the other way round.
type agreement struct {
	// own are the digests of this node with the last time at which each was in force.
	own    map[uint64]time.Time
	others map[string]*disagreement
}

// disagreement is a node whose digest differs.
type disagreement struct {
	// samples are its last digests, agreed the last time at which one of them was this node's.
	samples []uint64
	agreed  time.Time
}

// compare returns the names of the nodes that differ for too long, sorted. others are the digests that differ from own.
func (a *agreement) compare(now time.Time, own uint64, others map[string]uint64) (differ []string) {
	if a.own == nil {
		a.own, a.others = map[uint64]time.Time{}, map[string]*disagreement{}
	}
	a.own[own] = now
	maps.DeleteFunc(a.own, func(_ uint64, last time.Time) bool { return now.Sub(last) > slotsDifferAfter })
	maps.DeleteFunc(a.others, func(name string, _ *disagreement) bool { return !has(others, name) })
	for name, digest := range others {
		d := a.others[name]
		if d == nil {
			d = &disagreement{agreed: now}
			a.others[name] = d
		}
		if n := len(d.samples); n == 0 || d.samples[n-1] != digest {
			d.samples = append(d.samples[max(0, n+1-slotsSamples):], digest)
		}
		for _, sample := range d.samples {
			if last, was := a.own[sample]; was && last.After(d.agreed) {
				d.agreed = last
			}
		}
		if now.Sub(d.agreed) >= slotsDifferAfter {
			differ = append(differ, name)
		}
	}
	slices.Sort(differ)
	return differ
}

// compareSlots publishes the digest of this node's slots, and records the nodes whose slots differ for long.
func (s *Speaker) compareSlots(now time.Time) {
	if s.cfg.Node.Direct == nil {
		return
	}
	own := s.desired.SlotsDigest
	differ := s.agreement.compare(now, own, s.cfg.Detector.CompareSlots(own))
	if slices.Equal(differ, s.slotsDiffer) {
		return
	}
	if len(differ) > 0 {
		s.cfg.Log.Warn("nodes direct connections to other nodes than this one: connections break when they move between them",
			"nodes", len(differ), "first", differ[:min(len(differ), slotsLogged)])
	} else {
		s.cfg.Log.Info("all nodes direct connections to the same nodes as this one")
	}
	s.slotsDiffer = differ
	s.cfg.Metrics.differ.Set(float64(len(differ)))
}

// slotsLogged is the maximum number of nodes in a line of the log.
const slotsLogged = 10
