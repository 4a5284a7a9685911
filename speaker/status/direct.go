package status

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

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
