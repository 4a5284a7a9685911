package bgpstatus

import (
	"time"

	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

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
		if left := at.Add(watch.AbsentFor).Sub(now); left <= 0 {
			counts[node] = why
		} else if recheck == 0 || left < recheck {
			recheck = left
		}
	}
	return counts, recheck
}
