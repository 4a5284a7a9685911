package speaker

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
)

// work names what to compare with the plan and to change if it differs.
type work struct {
	// all stands for everything that is wanted or was observed.
	all      bool
	keys     map[ipvs.Key]struct{}
	elements map[ipvs.Element]struct{}
	addrs    map[netip.Addr]struct{}
	vips     map[string]struct{}
	services map[pools.ServiceKey]struct{}
	checks   bool
	// remembered are the virtual servers for which conntrack may have misleading entries.
	remembered map[ipvs.Key]struct{}
	// pods is set if the Pod sources must be set again, announce if the announcements must be.
	pods, announce bool
	// peers and routes are those of BGP, routes with a reason. speaker is set if other data of the BGP daemon changed.
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

// missing reports whether the work contains forwarding state.
func (w *work) missing() bool { return w.all || len(w.keys)+len(w.elements)+len(w.addrs) > 0 }

// add adds the work of x.
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

// planned adds the changes of a plan.
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

// everything adds all state that is wanted or was observed on the node.
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

// addresses returns the addresses of the work, including those of its virtual servers and filter elements.
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

// ofVirtual reports whether an element belongs to a virtual address or virtual server.
func ofVirtual(e ipvs.Element) bool { return e.Key.Port != 0 || e.Set == ipvs.Addresses }
