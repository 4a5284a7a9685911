package forwarding

import (
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// Plan returns the desired forwarding, and what may differ from the last call. touched must name everything in the View
// that changed since then; a Service that is due is planned anyway. The Forwarding belongs to the planner, and the next
// call changes it.
func (p *Planner) Plan(v *view.View, touched view.Touched, now time.Time) (Forwarding, ChangedForwarding) {
	p.changed = newChangedForwarding()
	if (len(touched.Nodes) > 0 || touched.ServiceNetworks || touched.All) && p.planGlobal(v) {
		touched.All = true
	}
	if len(touched.Nodes) > 0 || touched.All {
		p.planNodes(v)
	}
	p.planReturns(v, touched)
	services := p.touchedServices(v, touched, now)
	p.touchedAdmissions(v, touched, services)
	for key := range services {
		p.replan(v, key, now)
	}
	p.admission.all, p.forwarding.Gateways = nil, p.admission.gateways
	p.decideReasons(v)
	return p.forwarding, p.changed
}

// EndPlan ends the use of Changed until the next plan: after the first one it names everything.
func (p *Planner) EndPlan() { p.changed = ChangedForwarding{} }
