package sim

import (
	"slices"
	"time"
)

// Times are what a quantity took, again and again.
type Times []time.Duration

// Quantile returns the one that a share of them do not exceed, 0 if there are none.
func (t Times) Quantile(share float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(t))
	return s[min(len(s)-1, int(share*float64(len(s))))]
}

// Most returns the greatest.
func (t Times) Most() time.Duration { return t.Quantile(1) }

// Long returns how long each of the spans was.
func Long(spans []Span) (t Times) {
	for _, s := range spans {
		t = append(t, s.Long())
	}
	return t
}

// Since returns how long after a time each of the moves was.
func Since(at time.Duration, moves []Move) (t Times) {
	for _, m := range moves {
		t = append(t, m.At-at)
	}
	return t
}

// Wrong counts the nodes that were taken for dead wrongly.
func Wrong(deaths []Death) (n int) {
	for _, d := range deaths {
		if d.Wrong {
			n++
		}
	}
	return n
}
