package speaker

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// state is the observed state of the node that IronLB owns, kept up to date while it is changed.
type state struct {
	table, inside servers
	filter        ipvs.Filter
	// whole is set if the filter in force matches filter.
	whole bool
	addrs map[netip.Addr]struct{}
	// foreign are the node's addresses not owned by IronLB; blocked are the wanted ones among them.
	foreign, blocked map[netip.Addr]struct{}
	// addresses is when the addresses are listed next.
	addresses time.Time
	// sysctls holds the errors of kernel settings.
	sysctls SysctlErrors
}

// observe lists the owned state of the node, as far as that is due, and corrects its sysctls. A difference adds
// everything to the work. After an error the state counts as unknown.
func (s *Speaker) observe(ctx context.Context, todo *work, thorough bool) error {
	st := s.known
	first := st == nil
	if first {
		st = &state{table: servers{driver: s.cfg.Node.VirtualServers}, blocked: map[netip.Addr]struct{}{}}
		if s.cfg.Node.Inside != nil {
			st.inside.driver = s.cfg.Node.Inside
		}
	}
	s.known = nil
	addrs, err := s.lookAtAddresses(st, first || thorough)
	if err != nil {
		return err
	}
	filter, err := s.lookAtFilter(ctx, st, first)
	if err != nil {
		return err
	}
	virtuals, err := s.lookAtServers(st)
	if err != nil {
		return err
	}
	if s.setSysctls(st) || first || addrs || filter || virtuals {
		todo.everything(s.desired, st)
	}
	if first {
		s.keep(st)
	}
	s.known = st
	s.audited = time.Now()
	return nil
}

// lookAtAddresses lists the node's addresses if that is due, and reports whether they differ from the known ones. A
// Look triggers the loop when they change.
func (s *Speaker) lookAtAddresses(st *state, now bool) (differs bool, err error) {
	if !now && time.Now().Before(st.addresses) {
		return false, nil
	}
	addrs, foreign, err := s.cfg.Node.Addresses.List()
	if err != nil {
		return false, err
	}
	st.addresses = time.Now().Add(addressesEvery)
	differs = !maps.Equal(addrs, st.addrs) || !maps.Equal(foreign, st.foreign)
	st.addrs, st.foreign = addrs, foreign
	if differs {
		st.blocked = map[netip.Addr]struct{}{}
		for addr := range s.desired.Local {
			s.block(st, addr)
		}
	}
	return differs, nil
}

// block records whether an address of a Service is one of the node itself, which must not be taken from the node.
func (s *Speaker) block(st *state, addr netip.Addr) {
	_, wanted := s.desired.Local[addr]
	_, foreign := st.foreign[addr]
	if wanted && foreign {
		st.blocked[addr] = struct{}{}
	} else {
		delete(st.blocked, addr)
	}
}

// lookAtFilter reports whether the packet filter in force differs from the known one. Its contents at process start
// record what IronLB owns.
func (s *Speaker) lookAtFilter(ctx context.Context, st *state, first bool) (differs bool, err error) {
	if st.whole, err = s.cfg.Node.Filter.Check(ctx); err != nil {
		return false, err
	}
	if first {
		if s.lastFilter != nil {
			st.filter = s.lastFilter
		} else if st.filter, err = s.cfg.Node.Filter.List(ctx); err != nil {
			return false, err
		}
		s.lastFilter = st.filter
	}
	return !st.whole, nil
}

// lookAtServers reports whether the virtual servers differ from the known ones.
func (s *Speaker) lookAtServers(st *state) (differs bool, err error) {
	known := st.table.have != nil
	table, err := st.table.look(func(key ipvs.Key) bool { return s.mine(st, key) })
	if err != nil {
		return false, err
	}
	if known && table && s.cfg.Destroyed != nil {
		s.cfg.Destroyed()
	}
	inside, err := st.inside.look(func(ipvs.Key) bool { return true })
	return table || inside, err
}

// setSysctls corrects the sysctls and reports whether the set of affected addresses changed.
func (s *Speaker) setSysctls(st *state) (differs bool) {
	before := st.sysctls
	var changed []string
	changed, st.sysctls = s.cfg.Node.Sysctls.Apply(s.ipv6)
	for _, setting := range changed {
		s.log("set sysctl", "setting", setting)
	}
	return !before.sameFor(st.sysctls)
}

// mine reports whether a virtual server is owned: its address is owned, the filter records it, or it is wanted.
func (s *Speaker) mine(st *state, key ipvs.Key) bool {
	if _, ok := st.addrs[key.Addr]; ok {
		return true
	}
	if has(st.filter, ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}}) || isServed(st.filter, key) {
		return true
	}
	if _, blocked := st.blocked[key.Addr]; blocked {
		return false
	}
	return has(s.desired.Local, key.Addr) || has(s.desired.Table, key)
}

// recheck lists what could not be changed. It compares everything of the same addresses again: more may have been
// deleted.
func (s *Speaker) recheck(todo *work) error {
	if s.known == nil || len(todo.keys) == 0 {
		return nil
	}
	addrs := map[netip.Addr]struct{}{}
	for key := range todo.keys {
		addrs[key.Addr] = struct{}{}
	}
	st := s.known
	s.known = nil
	if err := st.table.relist(addrs, func(key ipvs.Key) bool { return s.mine(st, key) }); err != nil {
		return err
	}
	if err := st.inside.relist(addrs, func(ipvs.Key) bool { return true }); err != nil {
		return err
	}
	s.known = st
	for addr := range addrs {
		maps.Copy(todo.keys, s.desired.Keys[addr])
		maps.Copy(todo.keys, st.table.keys[addr])
		maps.Copy(todo.keys, st.inside.keys[addr])
	}
	return nil
}

func has[K comparable, V any](m map[K]V, key K) bool { _, ok := m[key]; return ok }

func isServed(f ipvs.Filter, key ipvs.Key) bool {
	return has(f, ipvs.Element{Set: ipvs.Served, Key: key})
}
