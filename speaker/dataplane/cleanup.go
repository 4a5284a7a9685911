package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// Cleanup removes IronLB's forwarding state, and nothing else, from a node on which no speaker runs: the addresses with
// IronLB's mark, their virtual servers, and the filter. Sysctls stay as they are.
//
// It continues after an error. A second call completes what failed in the first one.
func Cleanup(ctx context.Context, drivers Drivers, log *slog.Logger) error {
	addrs, _, err := drivers.Addresses.List()
	if err != nil {
		return err
	}
	filter, err := drivers.Filter.List(ctx)
	if err != nil {
		return err
	}
	ours := union(addrs, addressesOf(filter))
	stay := map[netip.Addr]struct{}{}
	var errs []error
	for _, addr := range sorted(addrs) {
		if _, err := drivers.Addresses.Remove(addr); err != nil {
			errs = append(errs, err)
			stay[addr] = struct{}{} // its virtual servers stay as well
			continue
		}
		log.Info("delete address", "address", addr, "reason", "Cleanup")
	}
	if drivers.Direct != nil {
		errs = append(errs, drivers.Direct.Remove(ctx))
	}
	if drivers.ReturnRoutes != nil {
		errs = append(errs, drivers.ReturnRoutes.Remove(ctx))
	}
	owned := func(key ipvs.Key) bool {
		return !has(stay, key.Addr) && (has(ours, key.Addr) || isServed(filter, key))
	}
	errs = append(errs, cleanVirtualServers(drivers.VirtualServers, owned, log))
	if drivers.ClusterInternal != nil {
		errs = append(errs, cleanVirtualServers(drivers.ClusterInternal, func(ipvs.Key) bool { return true }, log))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the filter records what is owned by IronLB, so it is removed last
	}
	return drivers.Filter.Remove(ctx)
}

// cleanVirtualServers deletes the virtual servers selected by owned. A kernel without IPVS has none.
func cleanVirtualServers(driver VirtualServers, owned func(ipvs.Key) bool, log *slog.Logger) error {
	t := servers{driver: driver}
	if _, err := t.observe(owned); errors.Is(err, ipvs.ErrNoModule) {
		return nil
	} else if err != nil {
		return err
	}
	done, _, err := t.apply(slices.Collect(maps.Keys(t.have)), nil)
	for _, op := range done {
		log.Info(op.Action.String(), append(describe(op), "reason", "Cleanup")...)
	}
	return err
}

// addressesOf returns the virtual addresses in a filter.
func addressesOf(f ipvs.Filter) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	for e := range f {
		if e.Set == ipvs.Addresses {
			out[e.Key.Addr] = struct{}{}
		}
	}
	return out
}

// union returns the union of the sets.
func union(sets ...map[netip.Addr]struct{}) map[netip.Addr]struct{} {
	all := map[netip.Addr]struct{}{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}
