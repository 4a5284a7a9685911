package dataplane

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// adopted is the adopted state: entries that the node held at the first observation and that a plan from a snapshot
// does not contain. An earlier process may have made them from newer data, so none is removed until every list is
// complete: "never before every input cache has synced". Entries made by this process are removed once the plan no
// longer contains them.
type adopted struct {
	table, internal ipvs.Table
	filter          ipvs.Filter
	addrs           map[netip.Addr]struct{}
}

// recordAdopted records the adopted state at the first observation if the plan comes from a snapshot.
func (d *DataPlane) recordAdopted(st *state) {
	if d.adopted != nil || !d.in.FromSnapshot {
		return
	}
	d.adopted = &adopted{table: subtract(st.table.have, d.in.Desired.Table), internal: subtract(st.internal.have, d.in.Desired.ClusterInternal),
		filter: ipvs.Filter{}, addrs: map[netip.Addr]struct{}{}}
	for e := range st.filter {
		if !has(d.in.Desired.Filter, e) && !has(d.in.Desired.Table, e.Key) { // the treatment of clients of served entries follows the plan
			d.adopted.filter[e] = struct{}{}
		}
	}
	for addr := range st.addrs {
		if !has(d.in.Desired.Local, addr) {
			d.adopted.addrs[addr] = struct{}{}
		}
	}
}

// subtract returns the virtual and real servers that one table has and another has not.
func subtract(have, want ipvs.Table) ipvs.Table {
	out := ipvs.Table{}
	for key, vs := range have {
		desired, wanted := want[key]
		more := ipvs.VirtualServer{Settings: vs.Settings, RealServers: map[netip.AddrPort]ipvs.RealServer{}}
		for addr, real := range vs.RealServers {
			if _, is := desired.RealServers[addr]; !is {
				more.RealServers[addr] = real
			}
		}
		if !wanted || len(more.RealServers) > 0 {
			out[key] = more
		}
	}
	return out
}

// releaseAdopted compares everything with the plan once that no longer comes from a snapshot. This removes the adopted
// state.
func (d *DataPlane) releaseAdopted(todo *Work) {
	if d.adopted == nil || d.in.FromSnapshot {
		return
	}
	d.adopted, d.in.Reason = nil, view.Planned
	if d.known != nil { // otherwise the next observation does
		d.addAll(todo)
	}
}

// IsAdopted reports whether an address is adopted state.
func (d *DataPlane) IsAdopted(addr netip.Addr) bool {
	return d.adopted != nil && has(d.adopted.addrs, addr)
}

func (d *DataPlane) adoptsElement(e ipvs.Element) bool {
	return d.adopted != nil && has(d.adopted.filter, e)
}

// adoptedOf returns the adopted state for one of the two tables of virtual servers.
func (d *DataPlane) adoptedOf(t *servers) ipvs.Table {
	switch {
	case d.adopted == nil:
		return nil
	case t == &d.known.internal:
		return d.adopted.internal
	}
	return d.adopted.table
}

// with returns a virtual server with its adopted real servers that still exist.
func with(vs, adopted, have ipvs.VirtualServer) ipvs.VirtualServer {
	if len(adopted.RealServers) == 0 {
		return vs
	}
	reals := map[netip.AddrPort]ipvs.RealServer{}
	maps.Copy(reals, vs.RealServers)
	for addr := range adopted.RealServers {
		real, there := have.RealServers[addr]
		if there && !has(reals, addr) {
			reals[addr] = real
		}
	}
	vs.RealServers = reals
	return vs
}
