package speaker

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// apply programs the node as desired, limited to what the work names. The order is required. An address must not be
// reachable before its virtual servers and filter elements exist, and must keep them while it is reachable. A real
// server must not receive clients that the filter still treats as in an earlier plan. Failures are recorded in
// s.failed.
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

// foreignErrors returns an error for each Service address that is an address of the node itself.
func (s *Speaker) foreignErrors() []error {
	var errs []error
	for _, addr := range sorted(s.known.blocked) {
		errs = append(errs, fmt.Errorf("address %v is given to a Service but is an address of this node: take it out of the IPAddressPool, or off the node", addr))
	}
	return errs
}

// removeAddresses deletes the addresses that no Service has any more. An address that is still announced stays.
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

// addAddresses adds the addresses whose virtual servers are programmed.
func (s *Speaker) addAddresses(todo *work) {
	lacking, routed := s.lacking(), s.routedAlone()
	for _, addr := range sorted(todo.addresses()) {
		if !has(s.desired.Local, addr) || has(s.known.addrs, addr) || !s.programmed(addr, lacking) {
			continue
		}
		if s.known.sysctls.answers(addr) != nil && !routed(addr) { // the kernel of each node would answer ARP for it
			continue
		}
		if _, err := s.cfg.Node.Addresses.Add(addr); err != nil {
			s.fail(err)
			s.failed.addrs[addr] = struct{}{}
			continue
		}
		s.known.addrs[addr] = struct{}{}
		maps.Copy(todo.remembered, s.desired.Keys[addr]) // earlier packets went elsewhere, and conntrack may have entries for them
		s.log("add address", "address", addr, "reason", s.reason)
	}
}

// wantsKey reports whether the plan contains the virtual server and its address is not a foreign address of the node.
func (s *Speaker) wantsKey(key ipvs.Key) bool {
	return has(s.desired.Table, key) && !has(s.known.blocked, key.Addr)
}

// setServers updates the virtual servers that the filter accepts and deletes those whose address is gone.
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
		case has(more, key): // kept unchanged
		case has(s.known.addrs, key.Addr) && !has(s.desired.Local, key.Addr):
			s.failed.keys[key] = struct{}{} // its address could not be deleted
		default:
			keys[key] = struct{}{}
		}
	}
	s.change(t, keys, want, kind, todo)
}

// change applies the wanted state and logs the completed operations.
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

// routedAlone returns a predicate for addresses that only routers send to: a BGPAdvertisement covers the address, and
// no VirtualIP contains it.
func (s *Speaker) routedAlone() func(addr netip.Addr) bool {
	if s.known.sysctls.ARP == nil {
		return func(netip.Addr) bool { return false } // not called in this case
	}
	owned := map[netip.Addr]struct{}{}
	for _, vip := range s.view.VIPs {
		for _, addr := range vip.Addresses {
			owned[addr] = struct{}{}
		}
	}
	return func(addr netip.Addr) bool { return has(s.desired.Routed, addr) && !has(owned, addr) }
}

// programmed reports whether the node can forward a wanted address: the filter accepts every port, every virtual server
// exists, and each has a wanted real server unless none is wanted. While a sysctl of the address is wrong, this holds
// only for addresses already announced: their withdrawal would cost more than it saves.
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
