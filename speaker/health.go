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
	// Reconciled is when the last reconcile ended.
	Reconciled time.Time
}

// stallTimeout is how long a reconcile may take before the loop counts as stalled.
const stallTimeout = time.Minute

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
	if age := time.Since(s.Health().Reconciled); age > stallTimeout {
		http.Error(w, fmt.Sprintf("reconcile loop stalled for %v", age.Round(time.Second)), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
