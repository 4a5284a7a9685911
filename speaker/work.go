package speaker

import (
	"maps"

	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/plan"
)

// work is the work of one reconcile: what to compare with the plan and to change or report if it differs. The embedded
// Work belongs to the data plane; its addresses and Services are also those to announce and to report.
type work struct {
	*dataplane.Work
	bgp  *advertise.Work
	vips map[string]struct{}
	// announce is set if the announcements must be published again.
	announce bool
}

func newWork() *work {
	return &work{Work: dataplane.NewWork(), bgp: advertise.NewWork(), vips: map[string]struct{}{}}
}

func (w *work) empty() bool {
	return w.Work.Empty() && w.bgp.Empty() && !w.announce && len(w.vips) == 0
}

// add adds the work of x.
func (w *work) add(x *work) {
	w.Work.Add(x.Work)
	w.bgp.Add(x.bgp)
	w.announce = w.announce || x.announce
	maps.Copy(w.vips, x.vips)
}

// planned adds the changes of a plan.
func (w *work) planned(c *plan.Changed) {
	w.Work.AddChanged(c)
	w.bgp.AddChanged(c)
	maps.Copy(w.vips, c.VIPs)
}
