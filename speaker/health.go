package speaker

import (
	"fmt"
	"net/http"
	"time"
)

// Health is the outcome of the last reconcile.
type Health struct {
	Ready  bool
	Reason string
	// Round is when the last reconcile ended.
	Round time.Time
}

// wedged is how long a reconcile may take before the loop counts as stalled.
const wedged = time.Minute

// Health returns the outcome of the last reconcile.
func (s *Speaker) Health() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health
}

// Readyz answers 200 while the node is as planned, and 503 with the reason otherwise.
func (s *Speaker) Readyz(w http.ResponseWriter, _ *http.Request) {
	h := s.Health()
	if !h.Ready {
		http.Error(w, h.Reason, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Healthz answers 503 while the loop is stalled. Faults that the loop cannot repair do not count: a restart would not
// repair them either.
func (s *Speaker) Healthz(w http.ResponseWriter, _ *http.Request) {
	if age := time.Since(s.Health().Round); age > wedged {
		http.Error(w, fmt.Sprintf("the loop has not finished a round for %v", age.Round(time.Second)), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
