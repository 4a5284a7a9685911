package sim

import (
	"slices"
	"time"
)

// Times are measured durations.
type Times []time.Duration

// Quantile returns the given quantile, or 0 if there are no durations.
func (t Times) Quantile(share float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(t))
	return s[min(len(s)-1, int(share*float64(len(s))))]
}

// Most returns the maximum.
func (t Times) Most() time.Duration { return t.Quantile(1) }

// Long returns the length of each span.
func Long(spans []Span) (t Times) {
	for _, s := range spans {
		t = append(t, s.Long())
	}
	return t
}

// Since returns the time of each move relative to at.
func Since(at time.Duration, moves []Move) (t Times) {
	for _, m := range moves {
		t = append(t, m.At-at)
	}
	return t
}

// Wrong counts nodes wrongly considered dead.
func Wrong(deaths []Death) (n int) {
	for _, d := range deaths {
		if d.Wrong {
			n++
		}
	}
	return n
}
