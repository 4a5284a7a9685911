package dataplane

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
)

// Work names what to compare with the plan and to change if it differs.
type Work struct {
	// All means everything desired or observed.
	All      bool
	Keys     map[ipvs.Key]struct{}
	Elements map[ipvs.Element]struct{}
	Addrs    map[netip.Addr]struct{}
	// Services are those whose health check port may differ.
	Services map[pools.ServiceKey]struct{}
	// Conntrack are the virtual servers for which conntrack may have misdirecting entries.
	Conntrack map[ipvs.Key]struct{}
	// Direct is set if the nodes of the first tier differ, or the first tier must be compared.
	Direct bool
	// Returns is set if the return routes differ, or must be compared.
	Returns bool
	// Checks is set if the probes must be set again, Pods if the Pod sources must be.
	Checks, Pods bool
}

// NewWork returns empty work.
func NewWork() *Work {
	return &Work{
		Keys:      map[ipvs.Key]struct{}{},
		Elements:  map[ipvs.Element]struct{}{},
		Addrs:     map[netip.Addr]struct{}{},
		Services:  map[pools.ServiceKey]struct{}{},
		Conntrack: map[ipvs.Key]struct{}{},
	}
}

// Empty reports whether there is nothing to do.
func (w *Work) Empty() bool {
	return !w.forwarding() && !w.Returns && !w.Checks && !w.Pods && len(w.Services)+len(w.Conntrack) == 0
}

// forwarding reports whether the work contains forwarding state.
func (w *Work) forwarding() bool {
	return w.All || w.Direct || len(w.Keys)+len(w.Elements)+len(w.Addrs) > 0
}

// Forwarding returns a copy of the forwarding state that the work contains.
func (w *Work) Forwarding() *Work {
	return &Work{Keys: maps.Clone(w.Keys), Elements: maps.Clone(w.Elements), Addrs: maps.Clone(w.Addrs), Direct: w.Direct}
}

// overlaps reports whether both contain a part of the forwarding state.
func (w *Work) overlaps(x *Work) bool {
	return w.All || w.Direct && x.Direct || intersect(w.Keys, x.Keys) || intersect(w.Elements, x.Elements) || intersect(w.Addrs, x.Addrs)
}

func intersect[K comparable](a, b map[K]struct{}) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	for k := range a {
		if has(b, k) {
			return true
		}
	}
	return false
}

// Add adds the work of x.
func (w *Work) Add(x *Work) {
	w.All, w.Direct, w.Checks, w.Pods = w.All || x.All, w.Direct || x.Direct, w.Checks || x.Checks, w.Pods || x.Pods
	w.Returns = w.Returns || x.Returns
	maps.Copy(w.Keys, x.Keys)
	maps.Copy(w.Elements, x.Elements)
	maps.Copy(w.Addrs, x.Addrs)
	maps.Copy(w.Services, x.Services)
	maps.Copy(w.Conntrack, x.Conntrack)
}

// AddChanged adds the changes of a plan, whose sets then belong to the work: those of the first plan name everything.
func (w *Work) AddChanged(c *plan.Changed) {
	w.Keys, w.Elements = unite(w.Keys, c.Keys), unite(w.Elements, c.Elements)
	w.Addrs, w.Services = unite(w.Addrs, c.Addrs), unite(w.Services, c.Services)
	w.Direct = w.Direct || c.DirectNodes
	w.Returns = w.Returns || c.ReturnRoutes
	w.Checks = w.Checks || len(c.Checks) > 0
	for e := range c.Elements {
		w.Pods = w.Pods || e.Set == ipvs.Pods || e.Set == ipvs.PodInterfaces
	}
}

// unite adds the members of b to a, and may return either.
func unite[K comparable](a, b map[K]struct{}) map[K]struct{} {
	if len(a) == 0 && b != nil {
		return b
	}
	maps.Copy(a, b)
	return a
}

// addState adds all state that is wanted or was observed on the node.
func (w *Work) addState(d *plan.Desired, st *state) {
	for _, table := range []ipvs.Table{d.Table, d.ClusterInternal, st.table.have, st.internal.have} {
		for key := range table {
			w.Keys[key] = struct{}{}
		}
	}
	maps.Copy(w.Elements, d.Filter)
	maps.Copy(w.Elements, st.filter)
	maps.Copy(w.Addrs, d.Local)
	maps.Copy(w.Addrs, st.addrs)
	for addr := range d.Announce {
		w.Addrs[addr] = struct{}{}
	}
	for addr := range d.Routed {
		w.Addrs[addr] = struct{}{}
	}
	w.Pods, w.Direct = true, true
}

// Addresses returns the addresses of the work, including those of its virtual servers and filter elements.
func (w *Work) Addresses() map[netip.Addr]struct{} {
	out := maps.Clone(w.Addrs)
	for key := range w.Keys {
		out[key.Addr] = struct{}{}
	}
	for e := range w.Elements {
		if ofVirtual(e) {
			out[e.Key.Addr] = struct{}{}
		}
	}
	return out
}

// ofVirtual reports whether an element belongs to a virtual address or virtual server.
func ofVirtual(e ipvs.Element) bool { return e.Key.Port != 0 || e.Set == ipvs.Addresses }
