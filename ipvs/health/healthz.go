package health

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Family is the Kubernetes name of an IP family.
type Family string

// The families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// late is how long a change may be pending: twice kube-proxy's syncPeriod.
const late = 2 * 30 * time.Second

// Healthz serves /healthz and /livez as kube-proxy does. It is safe for concurrent use.
type Healthz struct {
	mu       sync.Mutex
	families map[Family]progress
	eligible bool
}

// progress is the progress of one family.
type progress struct {
	// oldest and newest are the arrival times of the pending changes; zero if there is none.
	oldest, newest time.Time
	applied        time.Time
}

func (p progress) healthy(now time.Time) bool {
	return p.oldest.IsZero() || now.Sub(p.oldest) < late
}

// NewHealthz returns a Healthz of a node that is not known yet, without changes.
func NewHealthz() *Healthz {
	return &Healthz{families: map[Family]progress{}}
}

// Queued records that a change arrived that must be applied.
func (h *Healthz) Queued(families ...Family) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range families {
		p := h.families[f]
		if p.newest = now; p.oldest.IsZero() {
			p.oldest = now
		}
		h.families[f] = p
	}
}

// Applied records that every change that arrived before began is applied. A later change is still pending; it counts
// from began.
func (h *Healthz) Applied(began time.Time, families ...Family) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range families {
		p := h.families[f]
		switch {
		case p.newest.Before(began):
			p.oldest, p.newest = time.Time{}, time.Time{}
		case p.oldest.Before(began):
			p.oldest = began
		}
		p.applied = now
		h.families[f] = p
	}
}

// SetNode records whether the Node may get traffic: it exists, is not being deleted, and the cluster autoscaler is not
// about to delete it.
func (h *Healthz) SetNode(eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = eligible
}

// Healthy reports whether no change has been pending for longer than a minute.
func (h *Healthz) Healthy() bool {
	healthy, _ := h.report()
	return healthy.Healthy
}

// familyReport and report are the body of a response.
type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

type report struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[Family]familyReport `json:"status,omitempty"`
}

// report returns the health of the node and whether it is eligible. While nothing is pending, the last update is now:
// readers of kube-proxy's response expect that.
func (h *Healthz) report() (report, bool) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	r := report{CurrentTime: now, Healthy: true, Status: map[Family]familyReport{}}
	for f, p := range h.families {
		r.Status[f] = familyReport{LastUpdated: p.applied, Healthy: p.healthy(now)}
		r.Healthy = r.Healthy && p.healthy(now)
		if p.applied.After(r.LastUpdated) {
			r.LastUpdated = p.applied
		}
	}
	return r, h.eligible
}

// Handler serves /healthz and /livez.
func (h *Healthz) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		r, eligible := h.report()
		r.NodeEligible = &eligible
		send(w, r.Healthy && eligible, r)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		r, _ := h.report()
		send(w, r.Healthy, r)
	})
	return mux
}

func send(w http.ResponseWriter, ok bool, r report) {
	if ok {
		r.LastUpdated = r.CurrentTime
	}
	answer(w, ok, r)
}

// Run serves at the address until ctx ends. At first kube-proxy may still have the port.
func (h *Healthz) Run(ctx context.Context, log *slog.Logger, addr netip.AddrPort) error {
	return Endpoint{Name: "healthz", Field: "healthzBindAddress", Addr: addr, Handler: h.Handler()}.Run(ctx, log)
}
