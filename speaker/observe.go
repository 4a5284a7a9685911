package speaker

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// state is what the node was seen to hold of ours, kept up to date while it is changed.
type state struct {
	table, inside servers
	filter        ipvs.Filter
	// whole is set if the filter is in force as filter says.
	whole bool
	addrs map[netip.Addr]struct{}
	// foreign are the node's addresses that are not ours; blocked those of them that we want.
	foreign, blocked map[netip.Addr]struct{}
	// addresses is when they are listed next.
	addresses time.Time
	// sysctls is why the kernel's settings are not as they must be.
	sysctls SysctlErrors
}

// observe looks at what the node holds of ours, as far as that is due, and corrects its sysctls. What is new there makes
// everything to be compared. If it fails nothing is known any more.
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

// lookAtAddresses lists the node's addresses if that is due and tells whether they are not as known. A Look tells the loop of
// changes.
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

// block notes whether an address of a Service is one of the node itself, which must not be taken from it.
func (s *Speaker) block(st *state, addr netip.Addr) {
	_, wanted := s.desired.Local[addr]
	_, foreign := st.foreign[addr]
	if wanted && foreign {
		st.blocked[addr] = struct{}{}
	} else {
		delete(st.blocked, addr)
	}
}

// lookAtFilter tells whether the packet filter is not in force as known. What it held when the process began is a record
// of what is ours.
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

// lookAtServers tells whether the virtual servers are not as known.
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

// setSysctls corrects them and tells whether they can be relied on now and could not be before, or the other way round.
func (s *Speaker) setSysctls(st *state) (differs bool) {
	before := st.sysctls
	var changed []string
	changed, st.sysctls = s.cfg.Node.Sysctls.Apply(s.ipv6)
	for _, setting := range changed {
		s.log("set sysctl", "setting", setting)
	}
	return !before.sameFor(st.sysctls)
}

// mine tells whether a virtual server is ours: its address is, or the filter, which is the record of what we made, names
// it, or it is wanted.
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

// recheck looks again at what could not be changed. All of its addresses is compared again: more may have gone meanwhile.
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
