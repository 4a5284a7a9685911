package speaker

import (
	"fmt"
	"net/http"
	"time"
)

// Health is the outcome of the last round.
type Health struct {
	Ready  bool
	Reason string
	// Round is when the last round ended.
	Round time.Time
}

// wedged is how long a round may take before the process counts as stuck.
const wedged = time.Minute

// Health returns the outcome of the last round.
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

// Healthz answers 503 when the loop is stuck. What the loop cannot mend by itself does not count: a restart would not
// mend it either.
func (s *Speaker) Healthz(w http.ResponseWriter, _ *http.Request) {
	if age := time.Since(s.Health().Round); age > wedged {
		http.Error(w, fmt.Sprintf("the loop has not finished a round for %v", age.Round(time.Second)), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
