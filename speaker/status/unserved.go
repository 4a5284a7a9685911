package status

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// unserved are the addresses that this node reports as not serving traffic, with the reason. published is the last
// report, nil if that is outdated.
type unserved struct {
	of        map[netip.Addr]view.Reason
	published map[view.Reason]report.Unserved
}

// recordUnserved logs the addresses that stopped serving traffic or have a new reason, and those that serve it again.
// Errors of programming are logged elsewhere. One event may affect all addresses, so each reason is one line.
func (s *Status) recordUnserved(addrs map[netip.Addr]struct{}) {
	u := &s.unserved
	worse, better := map[view.Reason][]netip.Addr{}, map[view.Reason][]netip.Addr{} // by the present reason
	for addr := range addrs {
		routed := s.in.Desired.Routed[addr]
		before, was := u.of[addr]
		if was == routed.Report && (!was || before == routed.Reason) {
			continue
		}
		u.published = nil
		if routed.Report {
			u.of[addr] = routed.Reason
		} else {
			delete(u.of, addr)
		}
		switch {
		case routed.Report && isOfCluster(routed.Reason):
			worse[routed.Reason] = append(worse[routed.Reason], addr)
		case was && isOfCluster(before):
			better[routed.Reason] = append(better[routed.Reason], addr)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(worse)) {
		s.cfg.Log.Warn("BGP addresses not serving traffic", "reason", reason, "message", unservedMessage(reason),
			"count", len(worse[reason]), "addresses", lowest(worse[reason]))
	}
	for _, reason := range slices.Sorted(maps.Keys(better)) {
		s.cfg.Log.Info("BGP addresses serving traffic, or reported by another node", "reason", reason,
			"count", len(better[reason]), "addresses", lowest(better[reason]))
	}
}

// lowest sorts addresses and returns as many as one log line contains.
func lowest(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs[:min(len(addrs), 10)]
}

// isOfCluster reports whether a reason applies to all nodes, not only to this one.
func isOfCluster(reason view.Reason) bool {
	return reason != view.DataPlaneNotReady && unservedMessages[reason] != ""
}

// list returns the addresses by reason.
func (u *unserved) list() map[view.Reason]report.Unserved {
	if u.published == nil {
		u.published = map[view.Reason]report.Unserved{}
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

func unservedMessage(reason view.Reason) string {
	if text := unservedMessages[reason]; text != "" {
		return text
	}
	return unservedMessages[view.DataPlaneNotReady]
}

// unservedMessages explain each reason for an address that is announced by BGP, and its remediation.
var unservedMessages = map[view.Reason]string{
	view.NoLocalEndpoint: "no node announces it: externalTrafficPolicy is Local, and no node that may announce it " +
		"has an endpoint of the Service (of each Service, if several share the address); start a Pod there, or use Cluster",
	view.NoEndpoint: "it is announced, and connections are refused: the Service has no endpoint that is ready",
	view.NoPeer: "no node announces it: no node that the BGPAdvertisement covers has a BGPPeer that it names and that takes addresses of the family; " +
		"check the condition Ready of both, and their nodeSelectors",
	view.Excluded:          "no node announces it: every node that the BGPAdvertisement covers is excluded by label, being deleted or has no network",
	view.DataPlaneNotReady: "this node does not announce it: it could not be programmed; see /readyz of the speaker",
}
