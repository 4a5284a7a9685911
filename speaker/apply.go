package speaker

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// apply makes the node as desired where the work names it. The order is owed: an address must not be reachable before its
// virtual servers and its elements of the filter are there, nor lose them while it is; and a real server must not meet clients that the
// filter treats as an earlier plan had it. What fails is noted in s.failed.
func (s *Speaker) apply(ctx context.Context, todo *work) {
	for addr := range todo.addrs {
		s.block(s.known, addr)
	}
	s.closeHealthPorts(todo)
	s.removeAddresses(todo)
	s.addElements(ctx, todo)
	s.setPods(todo)
	s.dropStale(ctx, todo)
	s.setServers(&s.known.inside, s.desired.Inside, "inside ", todo)
	s.setServers(&s.known.table, s.desired.Table, "", todo)
	s.removeElements(ctx, todo)
	s.addAddresses(todo)
	s.measureReach()
	s.cleanConntrack(ctx, todo)
	s.setHealthPorts(todo)
	s.setChecks(todo)
}

// foreignErrors name the virtual addresses that the node has already.
func (s *Speaker) foreignErrors() []error {
	var errs []error
	for _, addr := range sorted(s.known.blocked) {
		errs = append(errs, fmt.Errorf("address %v is given to a Service but is an address of this node: take it out of the IPAddressPool, or off the node", addr))
	}
	return errs
}

// removeAddresses takes away the addresses that no Service has any more. One that is still announced stays.
func (s *Speaker) removeAddresses(todo *work) {
	for _, addr := range sorted(todo.addrs) {
		if has(s.desired.Local, addr) || !has(s.known.addrs, addr) || s.keepsAddress(addr) {
			continue
		}
		if has(s.announced, addr) || s.mayBeRouted(addr) {
			s.failed.addrs[addr] = struct{}{}
			continue
		}
		if _, err := s.cfg.Node.Addresses.Remove(addr); err != nil {
			s.fail(err)
			s.failed.addrs[addr] = struct{}{}
			continue
		}
		delete(s.known.addrs, addr)
		s.log("delete address", "address", addr, "reason", s.reason)
	}
}

// addAddresses makes those addresses local whose virtual servers are there.
func (s *Speaker) addAddresses(todo *work) {
	lacking, routed := s.lacking(), s.routedAlone()
	for _, addr := range sorted(todo.addresses()) {
		if !has(s.desired.Local, addr) || has(s.known.addrs, addr) || !s.programmed(addr, lacking) {
			continue
		}
		if s.known.sysctls.answers(addr) != nil && !routed(addr) { // the kernel of each node would answer for it
			continue
		}
		if _, err := s.cfg.Node.Addresses.Add(addr); err != nil {
			s.fail(err)
			s.failed.addrs[addr] = struct{}{}
			continue
		}
		s.known.addrs[addr] = struct{}{}
		maps.Copy(todo.remembered, s.desired.Keys[addr]) // what was sent before went elsewhere, and conntrack remembers that
		s.log("add address", "address", addr, "reason", s.reason)
	}
}

// wantsKey tells whether the plan asks for the virtual server and its address is not one of the node that it must not take.
func (s *Speaker) wantsKey(key ipvs.Key) bool {
	return has(s.desired.Table, key) && !has(s.known.blocked, key.Addr)
}

// setServers changes those virtual servers that the filter lets through, and deletes those whose address is gone.
func (s *Speaker) setServers(t *servers, desired ipvs.Table, kind string, todo *work) {
	if t.driver == nil {
		return
	}
	lacking, tainted, more := s.lacking(), s.tainted(todo), s.keptOf(t)
	keys, want := map[ipvs.Key]struct{}{}, ipvs.Table{}
	for key := range todo.keys {
		vs, wanted := desired[key]
		switch wanted = wanted && s.wantsKey(key); {
		case wanted && has(tainted, key):
			s.failed.keys[key] = struct{}{}
			if have, exists := t.have[key]; exists {
				keys[key], want[key] = struct{}{}, kept(have, vs)
			}
		case wanted && !has(t.have, key) && !(s.known.whole && isServed(s.known.filter, key) && !lacking[key] && !lacking[ipvs.Key{Addr: key.Addr}]):
			s.failed.keys[key] = struct{}{}
		case wanted:
			keys[key], want[key] = struct{}{}, with(vs, more[key], t.have[key])
		case has(more, key): // as it is
		case has(s.known.addrs, key.Addr) && !has(s.desired.Local, key.Addr):
			s.failed.keys[key] = struct{}{} // its address could not be deleted
		default:
			keys[key] = struct{}{}
		}
	}
	s.change(t, keys, want, kind, todo)
}

// change makes some virtual servers as given, and says what it did.
func (s *Speaker) change(t *servers, keys map[ipvs.Key]struct{}, want ipvs.Table, kind string, todo *work) {
	idle := t.idle(keys)
	done, failed, err := t.apply(keys, want)
	for _, op := range done {
		s.log(kind+op.Action.String(), append(describe(op), "reason", s.reason)...)
	}
	s.fail(err)
	maps.Copy(s.failed.keys, failed)
	misleading(todo.remembered, done, idle, len(s.view.Unreachable) > 0)
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

// routedAlone tells which addresses only routers ask this node for: a BGPAdvertisement covers them, and they are in no VirtualIP.
func (s *Speaker) routedAlone() func(addr netip.Addr) bool {
	if s.known.sysctls.ARP == nil {
		return func(netip.Addr) bool { return false } // nobody asks
	}
	owned := map[netip.Addr]struct{}{}
	for _, vip := range s.view.VIPs {
		for _, addr := range vip.Addresses {
			owned[addr] = struct{}{}
		}
	}
	return func(addr netip.Addr) bool { return has(s.desired.Routed, addr) && !has(owned, addr) }
}

// programmed tells whether the node can forward an address that is wanted: the filter lets every port through, every
// virtual server is there, and none lacks all of its real servers. While a sysctl is wrong on which that relies
// only what is announced already counts: taking it away would cost more than it saves.
func (s *Speaker) programmed(addr netip.Addr, lacking map[ipvs.Key]bool) bool {
	if !s.known.whole || has(s.known.blocked, addr) || s.known.sysctls.of(addr) != nil && !has(s.announced, addr) && !s.isRouted(addr) {
		return false
	}
	if lacking[ipvs.Key{Addr: addr}] {
		return false
	}
	for key := range s.desired.Keys[addr] {
		vs, there := s.known.table.have[key]
		if !there || !isServed(s.known.filter, key) || lacking[key] || !anyOf(s.desired.Table[key].RealServers, vs.RealServers) {
			return false
		}
	}
	return true
}

func anyOf(want, have map[netip.AddrPort]ipvs.RealServer) bool {
	for addr := range want {
		if _, ok := have[addr]; ok {
			return true
		}
	}
	return len(want) == 0
}

func sorted(addrs map[netip.Addr]struct{}) []netip.Addr {
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
}
