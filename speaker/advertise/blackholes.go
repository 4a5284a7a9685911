package advertise

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// A prefix of several addresses also attracts packets for unallocated addresses. The default route of the node would
// send them back to the router, in a loop until the TTL expires. So a blackhole route exists before such a prefix is
// announced and until it is withdrawn.

// canRoute reports whether a prefix may be announced. It adds the blackhole route first.
func (b *BGP) canRoute(prefix netip.Prefix, why view.Reason) bool {
	if prefix.IsSingleIP() || b.cfg.Blackholes == nil || has(b.blackholes, prefix) {
		return true
	}
	if _, err := b.cfg.Blackholes.AddBlackhole(prefix); err != nil {
		b.fail(err)
		b.failed[prefix] = why
		return false
	}
	if b.blackholes == nil {
		b.blackholes = map[netip.Prefix]struct{}{}
	}
	b.blackholes[prefix] = struct{}{}
	b.cfg.Record(slog.LevelDebug, "add blackhole", "prefix", prefix, "reason", b.in.Reason)
	return true
}

// PruneBlackholes deletes the blackholes of prefixes that are no longer announced. The first call includes blackholes
// of an earlier process.
func (b *BGP) PruneBlackholes() {
	driver := b.cfg.Blackholes
	if driver == nil || b.cfg.Daemon != nil && !b.begun || b.blackholesListed && len(b.blackholes) == 0 {
		return
	}
	if !b.blackholesListed {
		found, err := driver.Blackholes()
		if err != nil {
			b.fail(err)
			return
		}
		if b.blackholesListed = true; b.blackholes == nil {
			b.blackholes = found
		} else {
			maps.Copy(b.blackholes, found)
		}
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(b.blackholes), netip.Prefix.Compare) {
		if has(b.routes, prefix) || has(b.in.Desired.BGP.Routes, prefix) {
			continue
		}
		if _, err := driver.RemoveBlackhole(prefix); err != nil {
			b.fail(err)
			b.failed[prefix] = view.NoService
			continue
		}
		delete(b.blackholes, prefix)
		b.cfg.Record(slog.LevelDebug, "delete blackhole", "prefix", prefix, "reason", b.in.Reason)
	}
}

// RestoreBlackholes restores the blackholes that another program deleted.
func (b *BGP) RestoreBlackholes() {
	for _, prefix := range slices.SortedFunc(maps.Keys(b.blackholes), netip.Prefix.Compare) {
		added, err := b.cfg.Blackholes.AddBlackhole(prefix)
		if added {
			b.cfg.Record(slog.LevelDebug, "add blackhole", "prefix", prefix, "reason", view.Restored)
		}
		b.fail(err)
	}
}

// CleanupBlackholes deletes all blackholes.
func CleanupBlackholes(driver Blackholes, log *slog.Logger) error {
	if driver == nil {
		return nil
	}
	found, err := driver.Blackholes()
	if err != nil {
		return err
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(found), netip.Prefix.Compare) {
		if _, err := driver.RemoveBlackhole(prefix); err != nil {
			return err
		}
		log.Info("delete blackhole", "prefix", prefix, "reason", "Cleanup")
	}
	return nil
}
