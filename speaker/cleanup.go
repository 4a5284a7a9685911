package speaker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// Cleanup removes IronLB's state, and nothing else, from a node on which no speaker runs any more: the addresses with
// IronLB's mark, their virtual servers, and the filter. Sysctls stay as they are.
//
// It continues after an error. A second call completes what failed in the first one.
func Cleanup(ctx context.Context, node Node, log *slog.Logger) error {
	addrs, _, err := node.Addresses.List()
	if err != nil {
		return err
	}
	filter, err := node.Filter.List(ctx)
	if err != nil {
		return err
	}
	ours := union(addrs, addressesOf(filter))
	stay := map[netip.Addr]struct{}{}
	errs := []error{releaseRetained(node.Retainer, log)}
	errs = append(errs, cleanBlackholes(node.Blackholes, log))
	for _, addr := range sorted(addrs) {
		if _, err := node.Addresses.Remove(addr); err != nil {
			errs = append(errs, err)
			stay[addr] = struct{}{} // its virtual servers stay as well
			continue
		}
		log.Info("delete address", "address", addr, "reason", "Cleanup")
	}
	mine := func(key ipvs.Key) bool {
		return !has(stay, key.Addr) && (has(ours, key.Addr) || isServed(filter, key))
	}
	errs = append(errs, cleanVirtualServers(node.VirtualServers, mine, log))
	if node.Inside != nil {
		errs = append(errs, cleanVirtualServers(node.Inside, func(ipvs.Key) bool { return true }, log))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the filter records what is owned by IronLB, so it is removed last
	}
	return node.Filter.Remove(ctx)
}

// releaseRetained releases the addresses for which the kernel answers on behalf of a replaced speaker.
func releaseRetained(r Retainer, log *slog.Logger) error {
	if r == nil {
		return nil
	}
	retained, err := r.Retained()
	if err != nil {
		return err
	}
	if err := r.Release(retained); err != nil {
		return err
	}
	for _, addr := range sorted(retained) {
		log.Info("release", "address", addr, "reason", "Cleanup")
	}
	return nil
}

// cleanVirtualServers deletes the virtual servers selected by mine. A kernel without IPVS has none.
func cleanVirtualServers(driver VirtualServers, mine func(ipvs.Key) bool, log *slog.Logger) error {
	t := servers{driver: driver}
	if _, err := t.look(mine); errors.Is(err, ipvs.ErrNoModule) {
		return nil
	} else if err != nil {
		return err
	}
	keys := map[ipvs.Key]struct{}{}
	for key := range t.have {
		keys[key] = struct{}{}
	}
	done, _, err := t.apply(keys, nil)
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
