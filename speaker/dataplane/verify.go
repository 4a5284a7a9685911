package dataplane

import (
	"maps"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

const (
	// verifyWithin is the time in which each virtual server of a Verifier is compared once. A round in which many are
	// added takes longer; an edit is restored within ten seconds.
	verifyWithin = 8 * time.Second
	// verifyFactor bounds the cost, of the comparisons and of the lists after a difference, each to 1 % of a core. It has
	// precedence over the others, except that at least one is compared.
	verifyFactor = 100
	// verifyLeast is how many are compared each time if there are as many.
	verifyLeast = 50
	// listUncountedEvery is the interval of lists if the driver does not count all virtual servers, since it has some of
	// IPv6: no number reveals one that another program adds to an address of IronLB.
	listUncountedEvery = time.Minute
)

// verified reports whether the driver has the recorded number of virtual servers, and those compared now. Their number
// reveals at once if some were deleted or added, also by a flush.
//
// An address that is new in have may have virtual servers of another program, which it left there before. They are
// found by a list.
func (t *servers) verified(v Verifier, owned func(ipvs.Key) bool) (bool, error) {
	before := t.count
	t.count = count(v)
	every := listEvery
	switch {
	case t.grew:
		every = verifyWithin
	case t.ipv6 > 0 || t.count < 0:
		every = listUncountedEvery
	}
	if !t.listedWithin(every) {
		return false, nil
	}
	same, err := t.verify(v)
	if err != nil {
		return false, err
	}
	t.stale = t.stale || !same
	if t.count != before {
		virtuals, err := t.driver.Virtuals()
		if err != nil || !t.same(virtuals, owned) {
			return false, err
		}
	}
	return !t.stale || time.Now().Before(t.rested), nil
}

// count returns the number of virtual servers, -1 if the driver does not count.
func count(v Verifier) int {
	if n, err := v.Count(); err == nil {
		return n
	}
	return -1
}

// verify compares the next virtual servers with the driver's and reports whether they are the same.
func (t *servers) verify(v Verifier) (same bool, err error) {
	now := time.Now()
	elapsed := min(now.Sub(t.rota.at), verifyWithin)
	t.rota.at = now
	share := 1 + int(float64(len(t.have))*elapsed.Seconds()/verifyWithin.Seconds())
	for range min(max(share, verifyLeast), len(t.have)) {
		key := t.rota.take(t.have)
		if same, err := v.Same(key, t.have[key]); err != nil || !same {
			return false, err
		}
		if time.Since(now) >= elapsed/verifyFactor {
			break
		}
	}
	return true, nil
}

// rota is the order in which virtual servers are compared. It is the same in each round, so that the time between two
// comparisons of one is that of a round.
type rota struct {
	keys []ipvs.Key
	next int
	// at is when the last ones were compared.
	at time.Time
}

// add appends a new virtual server to the current round, if any.
func (r *rota) add(key ipvs.Key) {
	if len(r.keys) > 0 {
		r.keys = append(r.keys, key)
	}
}

// take returns the next virtual server of a table, which must not be empty.
func (r *rota) take(table ipvs.Table) ipvs.Key {
	for {
		for r.next < len(r.keys) {
			r.next++
			if key := r.keys[r.next-1]; has(table, key) {
				return key
			}
		}
		r.keys, r.next = slices.AppendSeq(r.keys[:0], maps.Keys(table)), 0
		slices.SortFunc(r.keys, ipvs.Key.Compare)
	}
}
