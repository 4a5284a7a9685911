package speaker

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
)

// work names what must be compared with the plan and, where it differs, changed.
type work struct {
	// all stands for everything that is wanted or was seen.
	all      bool
	keys     map[ipvs.Key]struct{}
	elements map[ipvs.Element]struct{}
	addrs    map[netip.Addr]struct{}
	vips     map[string]struct{}
	services map[pools.ServiceKey]struct{}
	checks   bool
	// remembered are the virtual servers whose connections conntrack may remember wrongly.
	remembered map[ipvs.Key]struct{}
	// pods is set when it must be said again who is one, announce when the announcer must be told again.
	pods, announce bool
	// peers and routes of BGP, these with why; speaker is set if something else is new of who speaks.
	peers   map[string]struct{}
	routes  map[netip.Prefix]plan.Reason
	speaker bool
}

func newWork() *work {
	return &work{
		keys:       map[ipvs.Key]struct{}{},
		elements:   map[ipvs.Element]struct{}{},
		addrs:      map[netip.Addr]struct{}{},
		vips:       map[string]struct{}{},
		services:   map[pools.ServiceKey]struct{}{},
		remembered: map[ipvs.Key]struct{}{},
		peers:      map[string]struct{}{},
		routes:     map[netip.Prefix]plan.Reason{},
	}
}

func (w *work) empty() bool {
	flags := w.all || w.checks || w.pods || w.announce || w.speaker || len(w.peers)+len(w.routes) > 0
	return !flags && len(w.keys)+len(w.elements)+len(w.addrs)+len(w.vips)+len(w.services)+len(w.remembered) == 0
}

// missing tells whether what forwards is among it.
func (w *work) missing() bool { return w.all || len(w.keys)+len(w.elements)+len(w.addrs) > 0 }

// add adds what another names.
func (w *work) add(x *work) {
	w.all, w.checks, w.pods, w.announce = w.all || x.all, w.checks || x.checks, w.pods || x.pods, w.announce || x.announce
	maps.Copy(w.keys, x.keys)
	maps.Copy(w.elements, x.elements)
	maps.Copy(w.addrs, x.addrs)
	maps.Copy(w.vips, x.vips)
	maps.Copy(w.services, x.services)
	maps.Copy(w.remembered, x.remembered)
	maps.Copy(w.peers, x.peers)
	maps.Copy(w.routes, x.routes)
	w.speaker = w.speaker || x.speaker
}

// planned adds what a plan changed.
func (w *work) planned(c *plan.Changed) {
	maps.Copy(w.keys, c.Keys)
	maps.Copy(w.elements, c.Elements)
	maps.Copy(w.addrs, c.Addrs)
	maps.Copy(w.vips, c.VIPs)
	maps.Copy(w.services, c.Services)
	w.checks = w.checks || len(c.Checks) > 0
	maps.Copy(w.peers, c.Peers)
	maps.Copy(w.routes, c.Routes)
	w.speaker = w.speaker || c.RouterID || c.NodeGoes
	for e := range c.Elements {
		w.pods = w.pods || e.Set == ipvs.Pods || e.Set == ipvs.PodInterfaces
	}
}

// everything names all that is wanted or was seen on the node.
func (w *work) everything(d *plan.Desired, st *state) {
	for _, table := range []ipvs.Table{d.Table, d.Inside, st.table.have, st.inside.have} {
		for key := range table {
			w.keys[key] = struct{}{}
		}
	}
	maps.Copy(w.elements, d.Filter)
	maps.Copy(w.elements, st.filter)
	maps.Copy(w.addrs, d.Local)
	maps.Copy(w.addrs, st.addrs)
	for addr := range d.Announce {
		w.addrs[addr] = struct{}{}
	}
	for addr := range d.Routed {
		w.addrs[addr] = struct{}{}
	}
	w.pods = true
}

// addresses returns those that are named, and those of the virtual servers that are, or that what is named of the filter
// belongs to.
func (w *work) addresses() map[netip.Addr]struct{} {
	out := maps.Clone(w.addrs)
	for key := range w.keys {
		out[key.Addr] = struct{}{}
	}
	for e := range w.elements {
		if ofVirtual(e) {
			out[e.Key.Addr] = struct{}{}
		}
	}
	return out
}

// ofVirtual tells whether an element says something about a virtual address or virtual server.
func ofVirtual(e ipvs.Element) bool { return e.Key.Port != 0 || e.Set == ipvs.Addresses }
