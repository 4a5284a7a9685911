package probe

import (
	"maps"
	"testing"
	"time"
)

// TestSum: quantiles are of all answers together, and failures count in none of them.
func TestSum(t *testing.T) {
	a, b := NewTally(), NewTally()
	for ms := 200; ms > 0; ms-- { // not sorted
		to := a
		if ms%2 == 0 {
			to = b
		}
		to.Answered(time.Duration(ms)*time.Millisecond, ms > 5, "web", "192.0.2.100")
	}
	b.Answered(time.Second, false, "web-2", "192.0.2.11")
	a.Errors["read: timeout"] += 2
	b.Errors["read: timeout"]++
	b.Errors["dial: timeout"]++
	l := Sum(a, b)
	if l.Requests != 201 || l.InTime != 195 || l.Failed != 4 ||
		l.P50 != 101*time.Millisecond || l.P99 != 199*time.Millisecond || l.Max != time.Second {
		t.Errorf("%+v", l)
	}
	for _, m := range []struct{ have, want map[string]int }{
		{l.Pods, map[string]int{"web": 200, "web-2": 1}},
		{l.Clients, map[string]int{"192.0.2.100": 200, "192.0.2.11": 1}},
		{l.Errors, map[string]int{"read: timeout": 3, "dial: timeout": 1}},
	} {
		if !maps.Equal(m.have, m.want) {
			t.Errorf("have %v, want %v", m.have, m.want)
		}
	}
	if none := Sum(); none.Requests != 0 || none.Failed != 0 || none.P99 != 0 {
		t.Errorf("without a request: %+v", none)
	}
}
