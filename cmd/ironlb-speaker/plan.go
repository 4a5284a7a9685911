package main

import (
	"net/netip"
	"net/url"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/plan"
)

// plan returns the options of the plan.
func (o options) plan() plan.Options {
	c := o.config
	return plan.Options{
		Node:     o.nodeName,
		Interval: c.Failover.Profile.Interval,
		Options: forwarding.Options{
			ServiceProxy:   c.ServiceProxy,
			Scheduler:      c.Scheduler,
			Flags:          c.Flags,
			NodePortCIDRs:  c.NodePortCIDRs,
			DetectLocal:    c.DetectLocal,
			ExternalIPs:    c.ExternalIPCIDRs,
			DrainLimit:     c.DrainLimit,
			EndpointChecks: c.EndpointChecks,
			ResetAfter:     c.ResetAfter,
		},
	}
}

// apiServers returns the address of the API server in the client configuration; none if that is a host name.
func apiServers(host string) []netip.Addr {
	if at, err := url.Parse(host); err == nil && at.Host != "" {
		host = at.Hostname()
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return []netip.Addr{addr.Unmap()}
}
