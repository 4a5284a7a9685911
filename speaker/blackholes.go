package speaker

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/plan"
)

// A prefix of several addresses also attracts packets for unallocated addresses. The default route of the node would
// send them back to the router, in a loop until the TTL expires. So a blackhole route exists before such a prefix is
// announced and until it is withdrawn.

// canRoute reports whether a prefix may be announced. It adds the blackhole route first.
func (s *Speaker) canRoute(prefix netip.Prefix, why plan.Reason) bool {
	if prefix.IsSingleIP() || s.cfg.Node.Blackholes == nil || has(s.blackholes, prefix) {
		return true
	}
	if _, err := s.cfg.Node.Blackholes.AddBlackhole(prefix); err != nil {
		s.fail(err)
		s.failed.routes[prefix] = why
		return false
	}
	if s.blackholes == nil {
		s.blackholes = map[netip.Prefix]struct{}{}
	}
	s.blackholes[prefix] = struct{}{}
	s.log("add blackhole", "prefix", prefix, "reason", s.reason)
	return true
}

// dropBlackholes deletes the blackholes of prefixes that are no longer announced. The first call includes blackholes of
// an earlier process.
func (s *Speaker) dropBlackholes() {
	driver := s.cfg.Node.Blackholes
	if driver == nil || s.cfg.BGP != nil && !s.bgp.begun || s.blackholesListed && len(s.blackholes) == 0 {
		return
	}
	if !s.blackholesListed {
		found, err := driver.Blackholes()
		if err != nil {
			s.fail(err)
			return
		}
		if s.blackholesListed = true; s.blackholes == nil {
			s.blackholes = found
		} else {
			maps.Copy(s.blackholes, found)
		}
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(s.blackholes), netip.Prefix.Compare) {
		if has(s.bgp.routes, prefix) || has(s.desired.BGP.Routes, prefix) {
			continue
		}
		if _, err := driver.RemoveBlackhole(prefix); err != nil {
			s.fail(err)
			s.failed.routes[prefix] = plan.NoService
			continue
		}
		delete(s.blackholes, prefix)
		s.log("delete blackhole", "prefix", prefix, "reason", s.reason)
	}
}

// mendBlackholes restores the blackholes that another program deleted.
func (s *Speaker) mendBlackholes() {
	for _, prefix := range slices.SortedFunc(maps.Keys(s.blackholes), netip.Prefix.Compare) {
		added, err := s.cfg.Node.Blackholes.AddBlackhole(prefix)
		if added {
			s.log("add blackhole", "prefix", prefix, "reason", restored)
		}
		s.fail(err)
	}
}

// cleanBlackholes deletes all blackholes.
func cleanBlackholes(driver Blackholes, log *slog.Logger) error {
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
