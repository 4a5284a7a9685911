package speaker

import (
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// returnPatience is how long a return route may be missing, as while its interface is down, before the node counts as
// unable to be forwarded to directly: every such change moves connections.
const returnPatience = 10 * time.Second

// missingReturn is why this node has no return route of a pool: the answers of its endpoints might be lost.
type missingReturn struct {
	why   string
	since time.Time
	// counts is set once it has lasted.
	counts bool
}

// observe updates it from the View. At the start it counts at once: no connection relies on this node yet.
func (m *missingReturn) observe(v *view.View, touched *view.Touched, now time.Time, first bool) {
	if first || touched.All || touched.Pools || touched.ReturnRoutes || touched.Host || len(touched.Links) > 0 {
		before := m.why
		if m.why = plan.MissingReturn(v); m.why == "" {
			*m = missingReturn{}
		} else if before == "" {
			m.since = now
		}
		m.counts = m.counts || first && m.why != ""
	}
	m.counts = m.counts || m.why != "" && now.Sub(m.since) >= returnPatience
}
