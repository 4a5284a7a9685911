package dataplane

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// Program programs the node as desired, limited to what the work names. The order is required. An address must not be
// reachable before its virtual servers and filter elements exist, and must keep them while it is reachable. A real
// server must not receive clients that the filter still treats as in an earlier plan. Failures stay
// pending. Nothing is changed while the state of the node is unknown.
func (d *DataPlane) Program(ctx context.Context, todo *Work) {
	d.deferred, d.programmed = false, time.Time{}
	if d.known == nil {
		d.failed.Add(todo)
		return
	}
	for addr := range todo.Addrs {
		d.block(d.known, addr)
	}
	d.closeHealthPorts(todo)
	d.removeAddresses(todo)
	d.removeDirected(ctx, todo)
	d.addElements(ctx, todo)
	d.setPods(todo)
	d.removeOutdated(ctx, todo)
	d.setVirtualServers(&d.known.internal, d.wantedInternally, "cluster-internal ", todo)
	d.setVirtualServers(&d.known.table, d.wanted, "", todo)
	d.setDirected(ctx, todo)
	d.recordDrains(todo)
	d.removeElements(ctx, todo)
	d.setReturns(ctx, todo)
	d.addAddresses(todo)
	d.openDirected(ctx, todo)
	d.recordProgrammed()
	d.cleanConntrack(ctx, todo)
	d.setHealthPorts(todo)
	d.setChecks(todo)
}

// foreignErrors returns an error for each Service address that is an address of the node itself.
func (d *DataPlane) foreignErrors() []error {
	var errs []error
	for _, addr := range sorted(d.known.blocked) {
		errs = append(errs, fmt.Errorf("address %v is allocated to a Service but assigned to this node: remove it from the IPAddressPool or from the node", addr))
	}
	return errs
}

// removeAddresses deletes the addresses that no Service has any more. An address that is still announced stays.
func (d *DataPlane) removeAddresses(todo *Work) {
	for _, addr := range sorted(todo.Addrs) {
		if has(d.in.Desired.Local, addr) || !has(d.known.addrs, addr) {
			continue
		}
		if d.in.Published(addr) || d.in.RoutesAdopted {
			d.deferred = d.deferred || d.in.RoutesAdopted
			d.failed.Addrs[addr] = struct{}{}
			continue
		}
		if _, err := d.drivers.Addresses.Remove(addr); err != nil {
			d.fail(err)
			d.failed.Addrs[addr] = struct{}{}
			continue
		}
		delete(d.known.addrs, addr)
		d.cfg.Record(slog.LevelDebug, "delete address", "address", addr, "reason", d.in.Reason)
	}
}

// addAddresses adds the addresses whose virtual servers are programmed.
func (d *DataPlane) addAddresses(todo *Work) {
	lacking, routed := d.lacking(), d.routedAlone()
	for _, addr := range sorted(todo.Addresses()) {
		if !has(d.in.Desired.Local, addr) || has(d.known.addrs, addr) || !d.canForward(addr, lacking) {
			continue
		}
		if d.known.sysctls.arp(addr) != nil && !routed(addr) { // the kernel of each node would answer ARP for it
			continue
		}
		if _, err := d.drivers.Addresses.Add(addr); err != nil {
			d.fail(err)
			d.failed.Addrs[addr] = struct{}{}
			continue
		}
		d.known.addrs[addr] = struct{}{}
		maps.Copy(todo.Conntrack, d.in.Desired.Keys[addr]) // earlier packets went elsewhere, and conntrack may have entries for them
		d.cfg.Record(slog.LevelDebug, "add address", "address", addr, "reason", d.in.Reason)
	}
}

// wantsKey reports whether the plan contains the virtual server and its address is not a foreign address of the node.
func (d *DataPlane) wantsKey(key ipvs.Key) bool {
	return has(d.in.Desired.Table, key) && !has(d.known.blocked, key.Addr)
}

// lookup returns the wanted virtual server of a key.
type lookup func(ipvs.Key) (vs ipvs.VirtualServer, wanted bool)

func (d *DataPlane) wantedInternally(key ipvs.Key) (ipvs.VirtualServer, bool) {
	vs, wanted := d.in.Desired.ClusterInternal[key]
	return vs, wanted
}

// setVirtualServers updates the virtual servers that the filter accepts and deletes those whose address is gone.
func (d *DataPlane) setVirtualServers(t *servers, desired lookup, kind string, todo *Work) {
	if t.driver == nil {
		return
	}
	lacking, notReplaceable := d.lacking(), d.notReplaceable(todo)
	keys, want := map[ipvs.Key]struct{}{}, ipvs.Table{}
	for key := range todo.Keys {
		if of, planned := d.in.Desired.ServicePorts[key]; planned {
			d.services[key] = of.Service
		}
		vs, wanted := desired(key)
		switch wanted = wanted && d.wantsKey(key); {
		case wanted && has(notReplaceable, key):
			d.failed.Keys[key] = struct{}{}
			if have, exists := t.have[key]; exists {
				keys[key], want[key] = struct{}{}, withoutUnwanted(have, vs)
			}
		case wanted && !has(t.have, key) && !(d.known.intact && isServed(d.known.filter, key) && !lacking[key] && !lacking[ipvs.Key{Addr: key.Addr}]):
			d.failed.Keys[key] = struct{}{}
		case wanted:
			keys[key], want[key] = struct{}{}, vs
		case has(d.known.addrs, key.Addr) && !has(d.in.Desired.Local, key.Addr):
			d.failed.Keys[key] = struct{}{} // its address could not be deleted
		default:
			keys[key] = struct{}{}
		}
	}
	d.change(t, keys, want, kind, todo)
}

// change applies the wanted state and logs the completed operations.
func (d *DataPlane) change(t *servers, keys map[ipvs.Key]struct{}, want ipvs.Table, kind string, todo *Work) {
	idle := t.idle(keys)
	for some := range slices.Chunk(slices.SortedFunc(maps.Keys(keys), ipvs.Key.Compare), applyMost) {
		done, failed, err := t.apply(some, want)
		for _, op := range done {
			d.record(kind, op)
		}
		d.fail(err)
		maps.Copy(d.failed.Keys, failed)
		addMisdirected(todo.Conntrack, done, idle, d.in.Unreachable)
	}
}

// record records an operation. Real servers follow each rollout, and cluster-internal virtual servers the others.
func (d *DataPlane) record(kind string, op ipvs.Op) {
	level, attrs := slog.LevelDebug, append(describe(op), "reason", d.in.Reason)
	if service, known := d.services[op.Virtual]; known {
		attrs = append([]any{"service", service}, attrs...)
	}
	if kind == "" && !op.Real.IsValid() {
		level = slog.LevelInfo
	}
	if op.Action == ipvs.DeleteVirtual {
		delete(d.services, op.Virtual)
	}
	d.cfg.Record(level, kind+op.Action.String(), attrs...)
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
func (d *DataPlane) routedAlone() func(addr netip.Addr) bool {
	if d.known.sysctls.ARP == nil {
		return func(netip.Addr) bool { return false } // not called in this case
	}
	owned := map[netip.Addr]struct{}{}
	for _, vip := range d.in.VIPs {
		for _, addr := range vip.Addresses {
			owned[addr] = struct{}{}
		}
	}
	return func(addr netip.Addr) bool { return has(d.in.Desired.Routed, addr) && !has(owned, addr) }
}

// canForward reports whether the node can forward a wanted address: the filter accepts every port, every virtual server
// exists and is directed if it is to be, and each has a wanted real server unless none is wanted. While a sysctl of the
// address is wrong, this holds only for addresses already announced: their withdrawal would cost more than it saves.
func (d *DataPlane) canForward(addr netip.Addr, lacking map[ipvs.Key]bool) bool {
	if !d.known.intact || has(d.known.blocked, addr) || d.known.sysctls.affecting(addr) != nil && !d.in.Published(addr) && !d.isRouted(addr) {
		return false
	}
	if lacking[ipvs.Key{Addr: addr}] {
		return false
	}
	for key := range d.in.Desired.Keys[addr] {
		vs, there := d.known.table.have[key]
		want, _ := d.wanted(key)
		if !there || !isServed(d.known.filter, key) || lacking[key] || d.lacksDirect(key) || !anyOf(want.RealServers, vs.RealServers) {
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

// removeOutdated deletes filter elements that treat clients of remaining virtual servers in an outdated way: no longer
// masqueraded, or from fewer sources. First it deletes the unwanted real servers, which may need these elements. New
// real servers come later: the address may belong to another Service now, whose clients must never be treated so. If
// the kernel refuses, setVirtualServers adds none.
func (d *DataPlane) removeOutdated(ctx context.Context, todo *Work) {
	outdated := d.outdated(todo.Elements)
	if len(outdated) == 0 {
		return
	}
	d.removeRealServers(&d.known.internal, d.wantedInternally, "cluster-internal ", outdated, todo)
	d.removeRealServers(&d.known.table, d.wanted, "", outdated, todo)
	var changes []ipvs.FilterChange
	for _, elements := range outdated {
		for _, e := range elements {
			changes = append(changes, ipvs.FilterChange{Element: e, Delete: true})
		}
	}
	d.updateFilter(ctx, changes)
}

// outdated returns, for each wanted virtual server, the filter elements about its clients that exist and are no longer
// needed. It returns none while the filter is not in force.
func (d *DataPlane) outdated(elements map[ipvs.Element]struct{}) map[ipvs.Key][]ipvs.Element {
	out := map[ipvs.Key][]ipvs.Element{}
	if !d.known.intact {
		return out
	}
	for e := range elements {
		if !has(d.known.filter, e) || d.wantsElement(e) || !d.wantsKey(e.Key) {
			continue
		}
		switch e.Set {
		case ipvs.Masqueraded, ipvs.MasqueradedUnlessPod:
			out[e.Key] = append(out[e.Key], e)
		case ipvs.Allowed: // if all sources are allowed now, this must not be deleted before the restriction
			if d.wantsElement(ipvs.Element{Set: ipvs.Restricted, Key: e.Key}) {
				out[e.Key] = append(out[e.Key], e)
			}
		}
	}
	return out
}

// notReplaceable returns the virtual servers that must not get real servers yet: their outdated elements could not be
// deleted, now or earlier.
func (d *DataPlane) notReplaceable(todo *Work) map[ipvs.Key][]ipvs.Element {
	failed := d.failed.Elements
	if d.failed.All {
		failed = d.known.filter
	}
	out := d.outdated(todo.Elements)
	maps.Copy(out, d.outdated(failed))
	return out
}

// removeRealServers deletes the unwanted real servers of some virtual servers.
func (d *DataPlane) removeRealServers(t *servers, desired lookup, kind string, of map[ipvs.Key][]ipvs.Element, todo *Work) {
	keys, want := map[ipvs.Key]struct{}{}, ipvs.Table{}
	for key := range of {
		have, exists := t.have[key]
		if !exists {
			continue
		}
		keys[key] = struct{}{}
		if vs, wanted := desired(key); wanted {
			want[key] = withoutUnwanted(have, vs)
		}
	}
	d.change(t, keys, want, kind, todo)
}

// kept returns the existing virtual server without its unwanted real servers.
func withoutUnwanted(have, want ipvs.VirtualServer) ipvs.VirtualServer {
	have.RealServers = maps.Clone(have.RealServers)
	maps.DeleteFunc(have.RealServers, func(at netip.AddrPort, _ ipvs.RealServer) bool { return !has(want.RealServers, at) })
	return have
}

const (
	// probeEvery is the interval of probes while tunnels are not available. A change of the nodes or interfaces hastens
	// the next probe to probeSoon after the last one.
	probeEvery = time.Minute
	probeSoon  = 10 * time.Second
	// A node that proves unable within steadyAfter of a successful probe waits twice as long each time, at most probeMax:
	// every such change moves the connections of its endpoints.
	steadyAfter = 10 * time.Minute
	probeMax    = 32 * time.Minute
)

// probing determines when to find out again whether this node can use tunnels.
type probing struct {
	// last is when that was last found out, by a probe or a failed Apply; zero for never. able is since when it could.
	last, able time.Time
	// wait is the interval to the next probe; zero while no Apply has failed.
	wait time.Duration
	// changed is set if the nodes or interfaces changed since.
	changed bool
}

// begun reports whether there was a probe.
func (p *probing) begun() bool { return !p.last.IsZero() }

// due reports whether a node that cannot use tunnels is to be probed.
func (p *probing) due(now time.Time) bool {
	wait := max(p.wait, probeEvery)
	if p.changed && wait == probeEvery {
		wait = probeSoon
	}
	return !now.Before(p.last.Add(wait))
}

// probed records the result of a probe.
func (p *probing) probed(now time.Time, able bool) {
	p.last, p.changed = now, false
	if able {
		p.able = now
	}
}

// failed records that Apply found that the node cannot use tunnels.
func (p *probing) failed(now time.Time) {
	wait := probeEvery
	if p.wait > 0 && now.Sub(p.able) < steadyAfter {
		wait = min(2*p.wait, probeMax)
	}
	p.last, p.wait, p.changed = now, wait, false
}
