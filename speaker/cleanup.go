package speaker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// Cleanup removes everything that is ours from a node on which no speaker runs any more, and nothing else: the
// addresses that carry our mark, their virtual servers, and the filter. Sysctls stay as they are.
//
// It goes on after an error; a second call finishes what could be mended meanwhile.
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
	var errs []error
	for _, addr := range sorted(addrs) {
		if _, err := node.Addresses.Remove(addr); err != nil {
			errs = append(errs, err)
			delete(ours, addr) // its virtual servers stay while it does
			continue
		}
		log.Info("delete address", "address", addr, "reason", "Cleanup")
	}
	errs = append(errs, cleanVirtualServers(node, ours, log))
	if err := errors.Join(errs...); err != nil {
		return err // the filter is the record of what is ours; it goes last
	}
	if err := node.Filter.Remove(ctx); err != nil {
		return err
	}
	log.Info("delete filter", "reason", "Cleanup")
	return nil
}

// cleanVirtualServers deletes the virtual servers of the addresses. A kernel without IPVS has none.
func cleanVirtualServers(node Node, ours map[netip.Addr]struct{}, log *slog.Logger) error {
	if len(ours) == 0 {
		return nil
	}
	table, err := node.VirtualServers.ListOf(ours)
	if errors.Is(err, ipvs.ErrNoModule) {
		return nil
	}
	if err != nil {
		return err
	}
	done, err := node.VirtualServers.Apply(ipvs.Diff(table, nil))
	for _, op := range done {
		log.Info(op.Action.String(), append(describe(op), "reason", "Cleanup")...)
	}
	return err
}

// addressesOf returns the virtual addresses that a filter names.
func addressesOf(f ipvs.Filter) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	for e := range f {
		if e.Set == ipvs.Addresses {
			out[e.Key.Addr] = struct{}{}
		}
	}
	return out
}

// union returns all addresses of the sets.
func union(sets ...map[netip.Addr]struct{}) map[netip.Addr]struct{} {
	all := map[netip.Addr]struct{}{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}
