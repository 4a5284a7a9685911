package status

import (
	"maps"
	"net/netip"
)

// reportRoutes counts the addresses by outcome, and logs contradicting advertisements.
func (s *Status) reportRoutes(addrs map[netip.Addr]struct{}) {
	for addr := range addrs {
		routed, covered := s.in.Desired.Routed[addr]
		s.routed.set(addr, routed.Reason, covered)
		s.unserved.record(addr, routed, covered)
	}
	for prefs := range s.in.Desired.LocalPrefs {
		if !has(s.prefs, prefs) {
			s.cfg.Log.Warn("two BGPAdvertisements announce a prefix to an internal peer with different localPref: the lower one is used, make them equal",
				"lower", prefs.Lower, "higher", prefs.Higher, "prefixes", s.in.Desired.LocalPrefs[prefs])
		}
	}
	if !maps.Equal(s.prefs, s.in.Desired.LocalPrefs) {
		s.prefs = maps.Clone(s.in.Desired.LocalPrefs)
	}
}
