package status

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// reportSplit logs the start and the end of a split brain: an unreachable node announces a VirtualIP that this node owns.
func (s *Status) reportSplit(name, rival string) {
	before := s.rivals[name]
	switch {
	case rival == before:
	case rival == "":
		delete(s.rivals, name)
		s.cfg.Line(slog.LevelInfo, "split brain resolved", "node", before, "virtualip", name)
	default:
		s.rivals[name] = rival
		s.cfg.Line(slog.LevelWarn, "split brain: an unreachable node announces VirtualIPs of this node", "node", rival, "virtualip", name)
	}
}

func equal(a, b report.VIPStatus) bool {
	return slices.Equal(a.Interfaces, b.Interfaces) && slices.Equal(a.Hosts, b.Hosts) && a.Node == b.Node &&
		a.Announced == b.Announced && a.Reason == b.Reason && a.Message == b.Message &&
		a.Conflict == b.Conflict && a.ConflictReason == b.ConflictReason &&
		a.NotDirect == b.NotDirect && a.NotDirectReason == b.NotDirectReason && a.At.Equal(b.At)
}

// recordMove counts a move of a VirtualIP to or from this node, and measures how long it had no owner.
func (s *Status) recordMove(name string, dec ownership.Decision, exists bool) {
	before := s.moved[name]
	if !exists {
		delete(s.moved, name)
		return
	}
	if before.reason != dec.Moved || !before.at.Equal(dec.At) {
		before = move{reason: dec.Moved, at: dec.At}
		s.cfg.Metrics.moves.WithLabelValues(string(dec.Moved)).Inc()
	}
	if dec.Owner == s.cfg.Node && !before.done && s.answered(dec) {
		before.done = true
		if dec.Moved == view.OwnerLost && dec.Cause != view.NoLocalEndpoint && !dec.Vacant.IsZero() {
			before.took = time.Since(dec.Vacant)
			s.cfg.Metrics.completion.Observe(before.took.Seconds())
			if dec.Cause == view.NodeNotAlive { // it was silent for the dead time before it counted as dead
				before.took += s.in.View.Members.Dead
			}
		}
	}
	s.moved[name] = before
}

// move is the last move of a VirtualIP; done is set once all of its addresses are announced, took is that of the status.
type move struct {
	reason view.Reason
	at     time.Time
	done   bool
	took   time.Duration
}

// answered reports whether all addresses of a decision are announced.
func (s *Status) answered(dec ownership.Decision) bool {
	return !slices.ContainsFunc(dec.Addresses, func(a netip.Addr) bool { return !has(s.in.Held, a) })
}

// status returns the outcome of a decision on this node.
func (s *Status) status(dec ownership.Decision) report.VIPStatus {
	out := s.ownStatus(dec)
	var hosts []string
	for _, addr := range dec.Addresses {
		if c, ok := s.in.Conflicts[addr]; ok {
			out.Hosts = append(out.Hosts, report.HostConflict{Addr: addr, MAC: c.MAC, Interface: c.Interface})
			hosts = append(hosts, fmt.Sprintf("another host, %s, answers for %v on %s", c.MAC, addr, c.Interface))
		}
	}
	switch {
	case len(hosts) > 0:
		out.ConflictReason = view.AddressConflict
		out.Conflict = fmt.Sprintf("node %s: %s: take the address away from it, or out of the IPAddressPool", s.cfg.Node, strings.Join(hosts, "; "))
	case dec.Asymmetric != "":
		out.ConflictReason = view.AnsweredTwice
		out.Conflict = fmt.Sprintf("node %s announces it as well and receives no heartbeats of node %s: allow the speakers' UDP port", dec.Asymmetric, s.cfg.Node)
	}
	return out
}

func (s *Status) ownStatus(dec ownership.Decision) report.VIPStatus {
	if dec.Owner == "" || dec.Owner != s.cfg.Node {
		return report.VIPStatus{Reason: dec.Reason, Message: message(dec) + s.interfaces(dec)}
	}
	interfaces := map[string]struct{}{}
	for _, addr := range dec.Addresses {
		on, answered := s.in.Held[addr]
		ann, published := s.in.Published(addr)
		if !published {
			return report.VIPStatus{Reason: view.DataPlaneNotReady, Message: "node " + dec.Owner + ": " + messages[view.DataPlaneNotReady]}
		}
		if !answered {
			why := view.NoInterface
			if ann.Probe {
				why = view.Probing
			}
			return report.VIPStatus{Reason: why, Message: "node " + dec.Owner + ": " + messages[why]}
		}
		for _, name := range on {
			interfaces[name] = struct{}{}
		}
	}
	return report.VIPStatus{
		Node:       dec.Owner,
		Interfaces: slices.Sorted(maps.Keys(interfaces)),
		Announced:  true,
		Reason:     view.Owner,
		Message:    "announced by node " + dec.Owner,
		Moved:      dec.Moved,
		At:         dec.At,
		From:       dec.From,
		Cause:      dec.Cause,
	}
}

// interfaces names the interfaces of this node and those that it lacks, if that is why the VirtualIP has no owner.
func (s *Status) interfaces(dec ownership.Decision) string {
	if dec.Reason != view.NoInterface {
		return ""
	}
	text := ""
	if len(dec.Missing) > 0 {
		text = ": interfaces names " + strings.Join(dec.Missing, ", ")
	}
	return fmt.Sprintf("%s; node %s has %s", text, s.cfg.Node, cmp.Or(strings.Join(dec.Up, ", "), "none with a subnet"))
}

// message returns why a VirtualIP has no owner, with the details of the decision.
func message(dec ownership.Decision) string {
	var where []string
	for i, l := range dec.Local {
		of := l.Service.String()
		if same := func(j int) bool { return j >= 0 && j < len(dec.Local) && dec.Local[j].Service == l.Service }; same(i-1) || same(i+1) {
			of += " (" + l.String() + ")"
		}
		nodes, more := l.Nodes, ""
		if n := len(nodes) - mostNodes; n > 0 {
			nodes, more = nodes[:mostNodes], fmt.Sprintf(" and %d more", n)
		}
		where = append(where, fmt.Sprintf("those of %s are on %s%s", of, strings.Join(nodes, ", "), more))
	}
	switch {
	case len(where) == 1:
		return "externalTrafficPolicy is Local and none of its nodes that is alive has an endpoint: " + where[0] +
			". Let a Pod run on one of its nodes, or set the policy to Cluster"
	case len(where) > 1:
		return "externalTrafficPolicy is Local and none of its nodes that is alive has endpoints of each " +
			"Service, port and family on the address: " +
			strings.Join(where, ", ") +
			". Let their Pods run on the same nodes, set the policy to Cluster, or give each its own address"
	}
	return messages[dec.Reason]
}

// mostNodes is the maximum number of nodes of a Service in a message.
const mostNodes = 5

// messages explain each reason and its remediation.
var messages = map[view.Reason]string{
	view.NoEligibleNode:    "no node may answer for it",
	view.NodeNotAlive:      "none of its nodes has a reachable speaker",
	view.NoAdvertisement:   "no L2Advertisement covers its pool on any of its nodes that is alive",
	view.NoLocalEndpoint:   "externalTrafficPolicy is Local and none of its nodes that is alive has an endpoint",
	view.Waiting:           "the preferred node has not claimed it yet",
	view.Observer:          "its speaker has just started or resumed after a stall, and observes the others first",
	view.Isolated:          "no other speaker is reachable on its network, while others reach one another there or no host answers",
	view.Excluded:          "its nodes are excluded by label, are being deleted or have no network",
	view.NotListed:         "the node is not listed any more",
	view.Stopping:          "the speaker of its only node is being stopped",
	view.NodeDeclined:      "its nodes declined it; see the logs of their speakers",
	view.PartlyIsolated:    "no other speaker is reachable on one of its networks, while others reach one another there or no host answers",
	view.AddressConflict:   "another host answers for an address of it",
	view.Probing:           "it is asked whether another host has it",
	view.NoService:         "no Service holds its address",
	view.DataPlaneNotReady: "its virtual servers could not be programmed; see /readyz of the speaker",
	view.KernelAnswers:     "the kernel of its node may answer ARP by itself, since a sysctl could not be set; see /readyz of the speaker",
	view.NoInterface:       "no interface is up that has it in its subnet or that its L2Advertisement names (of a bond or bridge name that, not its port)",
}

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

// reportFallback logs that a Service that is to be forwarded directly no longer is, for another reason than before, or
// is again.
func (s *Status) reportFallback(service pools.ServiceKey) {
	before, was := s.fallbacks[service]
	now, is := s.in.Desired.Fallbacks[service]
	switch {
	case is && now != before:
		s.fallbacks[service] = now
		s.cfg.Line(slog.LevelWarn, "Service is forwarded to endpoints, not directly", "service", service, "reason", now.Reason,
			"message", fallbackMessage(now))
	case was && !is:
		delete(s.fallbacks, service)
		if _, exists := s.in.Desired.Services[service]; exists {
			s.cfg.Line(slog.LevelInfo, "Service is no longer forwarded to endpoints for want of a tunnel", "service", service)
		}
	}
}

// listNotDirect lists the addresses that only BGP announces, of Services that are to be forwarded directly and are not.
// No VirtualIP reports these.
func (s *Status) listNotDirect() map[view.Reason]report.NotDirect {
	if len(s.in.Desired.Fallbacks) == 0 {
		return nil
	}
	owned := map[netip.Addr]struct{}{}
	for _, vip := range s.in.View.VIPs {
		for _, addr := range vip.Addresses {
			owned[addr] = struct{}{}
		}
	}
	out, first := map[view.Reason]report.NotDirect{}, map[view.Reason]view.Fallback{}
	for service, f := range s.in.Desired.Fallbacks {
		of := out[f.Reason]
		for _, a := range s.in.View.Services[service].Addresses {
			_, routed := s.in.Desired.Routed[a.IP]
			if routed && a.Kind == view.LoadBalancer && !has(owned, a.IP) && (f.Reason != view.NoIPv6Tunnel || a.IP.Is6()) {
				of.Addresses = append(of.Addresses, a.IP)
			}
		}
		if len(of.Addresses) == 0 {
			continue
		}
		if before, was := first[f.Reason]; !was || f.Compare(before) < 0 {
			first[f.Reason], of.Message = f, fallbackMessage(f)
		}
		out[f.Reason] = of
	}
	for reason, of := range out {
		slices.SortFunc(of.Addresses, netip.Addr.Compare)
		of.Addresses = slices.Compact(of.Addresses) // Services may share one
		out[reason] = of
	}
	return out
}

// addFallback adds to the status of a VirtualIP the first of its Services that is to be forwarded directly and is not.
func (s *Status) addFallback(out *report.VIPStatus, vip view.VIP) {
	for _, service := range slices.SortedFunc(slices.Values(vip.Services), pools.ServiceKey.Compare) {
		f, is := s.in.Desired.Fallbacks[service]
		if is && (f.Reason != view.NoIPv6Tunnel || slices.ContainsFunc(vip.Addresses, netip.Addr.Is6)) {
			out.NotDirectReason = f.Reason
			out.NotDirect = fmt.Sprintf("node %s forwards Service %v to endpoints, not directly: %s", s.cfg.Node, service, fallbackMessage(f))
			return
		}
	}
}

func fallbackMessage(f view.Fallback) string {
	switch f.Reason {
	case view.NodeWithoutTunnel:
		return fmt.Sprintf("the speaker of node %s, which has an endpoint, does not report that it can receive through tunnels and has "+
			"the return routes of all pools, or the node has no InternalIP of the same family: see its SpeakerStatus and its Node", f.Node)
	case view.NoReturnRoute:
		return "this node has no return route of a pool: see status.returnRoutes of its SpeakerStatus"
	case view.NoIPv6Tunnel:
		return fmt.Sprintf("its IPv6 addresses only: the tunnels of node %s have no IPv6: see the log of its speaker", f.Node)
	case view.EndpointWithoutNode:
		return fmt.Sprintf("endpoint %v has no node: write nodeName in its EndpointSlice", f.Endpoint)
	}
	return "this node cannot use tunnels: see the log of its speaker"
}
