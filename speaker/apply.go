package speaker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/plan"
)

// apply makes the node as desired. The order is owed: an address must not be reachable before its virtual servers and
// its firewall rules are there, nor lose them while it is.
func (s *Speaker) apply(ctx context.Context, have *state, d *plan.Desired) error {
	errs := []error{
		s.removeAddresses(have, d),
		s.setFilter(ctx, have, both(have.filter, d.Filter)),
		s.setVirtualServers(have, d),
		s.setFilter(ctx, have, both(d.Filter, leftover(have.table, d.Table, have.filter))),
	}
	ready := s.programmed(have, d)
	errs = append(errs, s.addAddresses(have, d, ready))
	want := map[netip.Addr]plan.Announcement{}
	for addr, ann := range d.Announce {
		_, local := have.addrs[addr]
		if local && ready[addr] {
			want[addr] = ann
		}
	}
	return errors.Join(append(errs, s.announce(want))...)
}

// foreignError names the virtual addresses that the node has already.
func foreignError(foreign map[netip.Addr]struct{}, d *plan.Desired) error {
	var errs []error
	for _, addr := range sorted(foreign) {
		if _, wanted := d.Local[addr]; wanted {
			errs = append(errs, fmt.Errorf("address %v is given to a Service but is an address of this node: take it out of the IPAddressPool", addr))
		}
	}
	return errors.Join(errs...)
}

// removeAddresses takes away the addresses that no Service has any more.
func (s *Speaker) removeAddresses(have *state, d *plan.Desired) error {
	var errs []error
	for _, addr := range sorted(have.addrs) {
		if _, wanted := d.Local[addr]; wanted {
			continue
		}
		if _, err := s.cfg.Node.Addresses.Remove(addr); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(have.addrs, addr)
		s.log("delete address", "address", addr, "reason", have.reason)
	}
	return errors.Join(errs...)
}

// addAddresses makes those addresses local whose virtual servers are there.
func (s *Speaker) addAddresses(have *state, d *plan.Desired, ready map[netip.Addr]bool) error {
	var errs []error
	for _, addr := range sorted(d.Local) {
		if _, there := have.addrs[addr]; there || !ready[addr] {
			continue
		}
		if _, err := s.cfg.Node.Addresses.Add(addr); err != nil {
			errs = append(errs, err)
			continue
		}
		have.addrs[addr] = struct{}{}
		s.log("add address", "address", addr, "reason", have.reason)
	}
	return errors.Join(errs...)
}

// setFilter replaces the filter if it differs.
func (s *Speaker) setFilter(ctx context.Context, have *state, want ipvs.Filter) error {
	changes := ipvs.DiffFilter(have.filter, want)
	if have.whole && len(changes) == 0 {
		return nil
	}
	written, err := 0, errNotBuilt
	if have.whole {
		written, err = s.cfg.Node.Filter.Update(ctx, changes)
	}
	if err != nil {
		written, err = s.cfg.Node.Filter.Build(ctx, want)
	}
	if err != nil {
		return err
	}
	have.filter, have.whole = want, true
	s.log("set filter", "elements", written, "reason", have.reason)
	return nil
}

var errNotBuilt = errors.New("not built")

// setVirtualServers changes those virtual servers that the firewall lets through, and deletes those whose address is
// gone.
func (s *Speaker) setVirtualServers(have *state, d *plan.Desired) error {
	want := ipvs.Table{}
	for key, vs := range d.Table {
		served := isServed(have.filter, key)
		_, exists := have.table[key]
		if have.whole && served || exists {
			want[key] = vs
		}
	}
	for key, vs := range have.table {
		_, wanted := d.Local[key.Addr]
		if _, local := have.addrs[key.Addr]; local && !wanted {
			want[key] = vs // its address could not be deleted
		}
	}
	done, err := s.cfg.Node.VirtualServers.Apply(ipvs.Diff(have.table, want))
	for _, op := range done {
		s.log(op.Action.String(), append(describe(op), "reason", have.reason)...)
		if applyErr := have.table.Apply(op); applyErr != nil {
			err = errors.Join(err, fmt.Errorf("note what was done: %w", applyErr))
		}
	}
	return err
}

func describe(op ipvs.Op) []any {
	switch op.Action {
	case ipvs.AddVirtual, ipvs.EditVirtual:
		return []any{"virtual", op.Virtual, "settings", op.Settings}
	case ipvs.DeleteVirtual:
		return []any{"virtual", op.Virtual}
	case ipvs.DeleteReal:
		return []any{"virtual", op.Virtual, "real", op.Real}
	}
	return []any{"virtual", op.Virtual, "real", op.Real, "server", op.RealServer}
}

// programmed tells for each desired address whether the node can forward it: the firewall lets every port through, every
// virtual server is there, and none lacks all of its real servers. While a sysctl is wrong, for which the kernel might
// answer ARP by itself, only what is announced already counts: taking it away would cost more than it saves.
func (s *Speaker) programmed(have *state, d *plan.Desired) map[netip.Addr]bool {
	ready := map[netip.Addr]bool{}
	for addr := range d.Local {
		_, announced := s.announced[addr]
		ready[addr] = have.whole && (have.sysctls == nil || announced)
	}
	for key, want := range d.Table {
		vs, there := have.table[key]
		served := isServed(have.filter, key)
		if !there || !served || !anyOf(want.RealServers, vs.RealServers) {
			ready[key.Addr] = false
		}
	}
	return ready
}

func anyOf(want, have map[netip.AddrPort]ipvs.RealServer) bool {
	for addr := range want {
		if _, ok := have[addr]; ok {
			return true
		}
	}
	return len(want) == 0
}

// log writes one line about a change and counts it.
func (s *Speaker) log(action string, args ...any) {
	s.cfg.Metrics.change(action)
	s.cfg.Log.Info(action, args...)
}

func sorted(addrs map[netip.Addr]struct{}) []netip.Addr {
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
}
