package speaker

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// remains is the adopted state: entries that the node held at the first observation and that a plan from a snapshot
// does not contain. An earlier process may have made them from newer data, so none is removed until every list is
// complete: "never before every input cache has synced". Entries made by this process are removed once the plan no
// longer contains them.
type remains struct {
	table, inside ipvs.Table
	filter        ipvs.Filter
	addrs         map[netip.Addr]struct{}
}

// keep records the adopted state at the first observation if the plan comes from a snapshot.
func (s *Speaker) keep(st *state) {
	if s.remains != nil || !s.view.Stale {
		return
	}
	s.remains = &remains{table: beyond(st.table.have, s.desired.Table), inside: beyond(st.inside.have, s.desired.Inside),
		filter: ipvs.Filter{}, addrs: map[netip.Addr]struct{}{}}
	for e := range st.filter {
		if !has(s.desired.Filter, e) && !has(s.desired.Table, e.Key) { // the treatment of clients of served entries follows the plan
			s.remains.filter[e] = struct{}{}
		}
	}
	for addr := range st.addrs {
		if !has(s.desired.Local, addr) {
			s.remains.addrs[addr] = struct{}{}
		}
	}
}

// beyond returns the virtual and real servers that one table has and another has not.
func beyond(have, want ipvs.Table) ipvs.Table {
	out := ipvs.Table{}
	for key, vs := range have {
		planned, wanted := want[key]
		more := ipvs.VirtualServer{Settings: vs.Settings, RealServers: map[netip.AddrPort]ipvs.RealServer{}}
		for addr, real := range vs.RealServers {
			if _, is := planned.RealServers[addr]; !is {
				more.RealServers[addr] = real
			}
		}
		if !wanted || len(more.RealServers) > 0 {
			out[key] = more
		}
	}
	return out
}

// letGo compares everything with the plan once that no longer comes from a snapshot. This removes the adopted state.
func (s *Speaker) letGo(todo *work) {
	if s.remains == nil || s.view.Stale {
		return
	}
	s.remains, s.reason = nil, planned
	if s.known != nil { // otherwise the next observation does
		todo.everything(s.desired, s.known)
	}
}

func (s *Speaker) keepsAddress(addr netip.Addr) bool {
	return s.remains != nil && has(s.remains.addrs, addr)
}

func (s *Speaker) keepsElement(e ipvs.Element) bool {
	return s.remains != nil && has(s.remains.filter, e)
}

// keptOf returns the adopted state for one of the two tables of virtual servers.
func (s *Speaker) keptOf(t *servers) ipvs.Table {
	switch {
	case s.remains == nil:
		return nil
	case t == &s.known.inside:
		return s.remains.inside
	}
	return s.remains.table
}

// with returns a virtual server with its adopted real servers that still exist.
func with(vs, remains, have ipvs.VirtualServer) ipvs.VirtualServer {
	if len(remains.RealServers) == 0 {
		return vs
	}
	reals := map[netip.AddrPort]ipvs.RealServer{}
	maps.Copy(reals, vs.RealServers)
	for addr := range remains.RealServers {
		real, there := have.RealServers[addr]
		if there && !has(reals, addr) {
			reals[addr] = real
		}
	}
	vs.RealServers = reals
	return vs
}
