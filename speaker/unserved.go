package speaker

import (
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

// noteUnserved logs that one address is not as it should be, for another reason than before, or is again. Of what could not be programmed the
// error was logged.
func (s *Speaker) noteUnserved(addr netip.Addr, routed plan.Routed) {
	u := &s.bgp.unserved
	before, was := u.of[addr]
	if was == routed.Tell && (!was || before == routed.Reason) {
		return
	}
	u.published = nil
	if routed.Tell {
		u.of[addr] = routed.Reason
	} else {
		delete(u.of, addr)
	}
	switch {
	case routed.Tell && isOfCluster(routed.Reason):
		s.cfg.Log.Warn("nobody is served by an address that a BGPAdvertisement covers", "address", addr, "reason", routed.Reason, "message", unservedMessage(routed.Reason))
	case was && isOfCluster(before):
		s.cfg.Log.Info("an address that a BGPAdvertisement covers is served, or another node says why it is not", "address", addr, "reason", routed.Reason)
	}
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
	plan.NoLocalEndpoint: "no node announces it: externalTrafficPolicy is Local, and no node that may announce it has an endpoint of the Service; start a Pod there, or use Cluster",
	plan.NoEndpoint:      "it is announced, and connections are refused: the Service has no endpoint that is ready",
	plan.NoPeer: "no node announces it: no node that the BGPAdvertisement covers has a BGPPeer that it names and that takes addresses of the family; " +
		"look at the condition Ready of both, and at their nodeSelectors",
	plan.Excluded:          "no node announces it: every node that the BGPAdvertisement covers is labelled to be left out, about to go or has no network",
	plan.DataPlaneNotReady: "this node does not announce it: it could not be programmed; the speaker's /readyz says why",
}
