package speaker

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/plan"
)

// unserved are the addresses of which this node says that nobody is served by them, with the reason. published is what was made of it last, nil
// if that is of the past.
type unserved struct {
	of        map[netip.Addr]plan.Reason
	published map[plan.Reason]plan.Unserved
}

// noteUnserved logs which of the addresses are not as they should be, for another reason than before, and which are again. Of what could not be
// programmed the error was logged. An event may bear on all addresses, so a reason is one line.
func (s *Speaker) noteUnserved(addrs map[netip.Addr]struct{}) {
	u := &s.bgp.unserved
	worse, better := map[plan.Reason][]netip.Addr{}, map[plan.Reason][]netip.Addr{} // by what the reason is now
	for addr := range addrs {
		routed := s.desired.Routed[addr]
		before, was := u.of[addr]
		if was == routed.Tell && (!was || before == routed.Reason) {
			continue
		}
		u.published = nil
		if routed.Tell {
			u.of[addr] = routed.Reason
		} else {
			delete(u.of, addr)
		}
		switch {
		case routed.Tell && isOfCluster(routed.Reason):
			worse[routed.Reason] = append(worse[routed.Reason], addr)
		case was && isOfCluster(before):
			better[routed.Reason] = append(better[routed.Reason], addr)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(worse)) {
		s.cfg.Log.Warn("nobody is served by addresses that a BGPAdvertisement covers", "reason", reason, "message", unservedMessage(reason),
			"count", len(worse[reason]), "addresses", lowest(worse[reason]))
	}
	for _, reason := range slices.Sorted(maps.Keys(better)) {
		s.cfg.Log.Info("addresses that a BGPAdvertisement covers are served, or another node says why they are not", "reason", reason,
			"count", len(better[reason]), "addresses", lowest(better[reason]))
	}
}

// lowest sorts addresses and returns as many as a line of the log has.
func lowest(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs[:min(len(addrs), 10)]
}

// isOfCluster tells whether a reason holds for all nodes, and not for this one alone.
func isOfCluster(reason plan.Reason) bool {
	return reason != plan.DataPlaneNotReady && unservedMessages[reason] != ""
}

// list returns them by reason.
func (u *unserved) list() map[plan.Reason]plan.Unserved {
	if u.published == nil {
		u.published = map[plan.Reason]plan.Unserved{}
		for addr, reason := range u.of {
			of := u.published[reason]
			of.Message, of.Addresses = unservedMessage(reason), append(of.Addresses, addr)
			u.published[reason] = of
		}
		for _, of := range u.published {
			slices.SortFunc(of.Addresses, netip.Addr.Compare)
		}
	}
	return u.published
}

func unservedMessage(reason plan.Reason) string {
	if text := unservedMessages[reason]; text != "" {
		return text
	}
	return unservedMessages[plan.DataPlaneNotReady]
}

// unservedMessages say what a reason means for an address that is announced by BGP, and how to mend it.
var unservedMessages = map[plan.Reason]string{
	plan.NoLocalEndpoint: "no node announces it: externalTrafficPolicy is Local, and no node that may announce it " +
		"has an endpoint of the Service (of each Service, if several share the address); start a Pod there, or use Cluster",
	plan.NoEndpoint: "it is announced, and connections are refused: the Service has no endpoint that is ready",
	plan.NoPeer: "no node announces it: no node that the BGPAdvertisement covers has a BGPPeer that it names and that takes addresses of the family; " +
		"look at the condition Ready of both, and at their nodeSelectors",
	plan.Excluded:          "no node announces it: every node that the BGPAdvertisement covers is labelled to be left out, about to go or has no network",
	plan.DataPlaneNotReady: "this node does not announce it: it could not be programmed; the speaker's /readyz says why",
}
