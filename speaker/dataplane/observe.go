package dataplane

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// AddressesEvery is the interval of address lists without a thorough observation, which a notification of the kernel
// causes: the kernel notifies of an address of an interface before it changes the local route.
const AddressesEvery = 30 * time.Second

// state is the observed state of the node that IronLB owns, kept up to date while it is changed.
type state struct {
	table, internal servers
	filter          ipvs.Filter
	// intact is set if the filter in force matches filter.
	intact bool
	addrs  map[netip.Addr]struct{}
	// foreign are the node's addresses not owned by IronLB; blocked are the wanted ones among them.
	foreign, blocked map[netip.Addr]struct{}
	// addresses is when the addresses are listed next.
	addresses time.Time
	// sysctls holds the errors of kernel settings.
	sysctls SysctlErrors
}

// Observe lists again what could not be changed, and then the owned state of the node, as far as that is due or
// thorough is set. If it fails, the node very likely still forwards what it did.
func (d *DataPlane) Observe(ctx context.Context, todo *Work, thorough bool) error {
	err := d.relistFailed(todo)
	if err == nil {
		err = d.observe(ctx, todo, thorough)
	}
	if err != nil {
		d.fail(err)
		return err
	}
	if todo.All {
		d.addAll(todo)
	}
	return nil
}

// observe lists the owned state of the node, as far as that is due, and corrects its sysctls. A difference adds
// everything to the work. After an error the state counts as unknown.
func (d *DataPlane) observe(ctx context.Context, todo *Work, thorough bool) error {
	st := d.known
	first := st == nil
	if first {
		st = &state{table: servers{driver: d.drivers.VirtualServers}, blocked: map[netip.Addr]struct{}{}}
		if d.drivers.ClusterInternal != nil {
			st.internal.driver = d.drivers.ClusterInternal
		}
	}
	d.known = nil
	addrs, err := d.observeAddresses(st, first || thorough)
	if err != nil {
		return err
	}
	filter, err := d.observeFilter(ctx, st, first)
	if err != nil {
		return err
	}
	virtuals, err := d.observeServers(st)
	if err != nil {
		return err
	}
	direct := d.checkDirect(ctx)
	d.checkReturns(ctx, todo)
	if d.setSysctls(st) || first || direct || addrs || filter || virtuals {
		todo.addState(d.in.Desired, st)
	}
	d.known = st
	return nil
}

// observeAddresses lists the node's addresses if that is due, and reports whether they differ from the known ones. A
// Watch triggers the loop when they change.
func (d *DataPlane) observeAddresses(st *state, now bool) (differs bool, err error) {
	if !now && time.Now().Before(st.addresses) {
		return false, nil
	}
	addrs, foreign, err := d.drivers.Addresses.List()
	if err != nil {
		return false, err
	}
	st.addresses = time.Now().Add(AddressesEvery)
	differs = !maps.Equal(addrs, st.addrs) || !maps.Equal(foreign, st.foreign)
	st.addrs, st.foreign = addrs, foreign
	if differs {
		st.blocked = map[netip.Addr]struct{}{}
		for addr := range d.in.Desired.Local {
			d.block(st, addr)
		}
	}
	return differs, nil
}

// block records whether an address of a Service is one of the node itself, which must not be taken from the node.
func (d *DataPlane) block(st *state, addr netip.Addr) {
	_, wanted := d.in.Desired.Local[addr]
	_, foreign := st.foreign[addr]
	if wanted && foreign {
		st.blocked[addr] = struct{}{}
	} else {
		delete(st.blocked, addr)
	}
}

// observeFilter reports whether the packet filter in force differs from the known one. Its contents at process start
// record what IronLB owns.
func (d *DataPlane) observeFilter(ctx context.Context, st *state, first bool) (differs bool, err error) {
	if st.intact, err = d.drivers.Filter.Check(ctx); err != nil {
		return false, err
	}
	if first {
		if d.lastFilter != nil {
			st.filter = d.lastFilter
		} else if st.filter, err = d.drivers.Filter.List(ctx); err != nil {
			return false, err
		}
		d.lastFilter = st.filter
	}
	return !st.intact, nil
}

// observeServers reports whether the virtual servers differ from the known ones.
func (d *DataPlane) observeServers(st *state) (differs bool, err error) {
	known := st.table.have != nil
	table, err := st.table.observe(func(key ipvs.Key) bool { return d.owned(st, key) })
	if err != nil {
		return false, err
	}
	if known && table && d.cfg.Destroyed != nil {
		d.cfg.Destroyed()
	}
	internal, err := st.internal.observe(func(ipvs.Key) bool { return true })
	return table || internal, err
}

// setSysctls corrects the sysctls and reports whether the set of affected addresses changed.
func (d *DataPlane) setSysctls(st *state) (differs bool) {
	before := st.sysctls
	var changed []string
	changed, st.sysctls = d.drivers.Sysctls.Apply(d.ipv6)
	for _, setting := range changed {
		d.cfg.Record(slog.LevelInfo, "set sysctl", "setting", setting)
	}
	return !before.sameFor(st.sysctls)
}

// owned reports whether a virtual server is owned: its address is owned, the filter records it, or it is wanted.
func (d *DataPlane) owned(st *state, key ipvs.Key) bool {
	if _, ok := st.addrs[key.Addr]; ok {
		return true
	}
	if has(st.filter, ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}}) || isServed(st.filter, key) {
		return true
	}
	if _, blocked := st.blocked[key.Addr]; blocked {
		return false
	}
	return has(d.in.Desired.Local, key.Addr) || has(d.in.Desired.Table, key)
}

// relistFailed lists what could not be changed. It compares everything of the same addresses again: more may have been
// deleted.
func (d *DataPlane) relistFailed(todo *Work) error {
	if d.known == nil || len(todo.Keys) == 0 {
		return nil
	}
	addrs := map[netip.Addr]struct{}{}
	for key := range todo.Keys {
		addrs[key.Addr] = struct{}{}
	}
	st := d.known
	d.known = nil
	if err := st.table.relist(addrs, func(key ipvs.Key) bool { return d.owned(st, key) }); err != nil {
		return err
	}
	if err := st.internal.relist(addrs, func(ipvs.Key) bool { return true }); err != nil {
		return err
	}
	d.known = st
	for addr := range addrs {
		maps.Copy(todo.Keys, d.in.Desired.Keys[addr])
		maps.Copy(todo.Keys, st.table.keys[addr])
		maps.Copy(todo.Keys, st.internal.keys[addr])
	}
	return nil
}

func isServed(f ipvs.Filter, key ipvs.Key) bool {
	return has(f, ipvs.Element{Set: ipvs.Served, Key: key})
}
