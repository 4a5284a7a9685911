package status

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// reportRoutes counts the addresses by outcome, and logs contradicting advertisements.
func (s *Status) reportRoutes(addrs map[netip.Addr]struct{}) {
	for addr := range addrs {
		routed, covered := s.in.Desired.Routed[addr]
		s.routed.set(addr, s.routedReason(routed), covered)
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

// countSessions counts the addresses again if other sessions are established than before.
func (s *Status) countSessions() {
	up := map[string]struct{}{}
	for peer, session := range s.in.Sessions {
		if session.State == routes.SessionEstablished {
			up[peer] = struct{}{}
		}
	}
	if maps.Equal(s.up, up) {
		return
	}
	s.up = up
	for addr, routed := range s.in.Desired.Routed {
		s.routed.set(addr, s.routedReason(routed), true)
	}
}

// routedReason returns the outcome for an address: NoSession if it would be announced and no router receives it.
func (s *Status) routedReason(routed routes.Routed) view.Reason {
	for _, prefix := range routed.Prefixes {
		for peer := range s.in.Desired.BGP.Routes[prefix] {
			if has(s.up, peer) {
				return routed.Reason
			}
		}
	}
	if len(routed.Prefixes) > 0 {
		return view.NoSession
	}
	return routed.Reason
}
