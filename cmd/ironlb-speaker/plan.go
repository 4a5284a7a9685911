package main

import "github.com/ironlb/ironlb/speaker/plan"

// plan returns what the plan needs of the options.
func (o options) plan() plan.Options {
	c := o.config
	return plan.Options{
		Node:            o.nodeName,
		ServiceProxy:    c.ServiceProxy,
		Scheduler:       c.Scheduler,
		Flags:           c.Flags,
		NodePortPrimary: c.NodePortPrimary,
		NodePortCIDRs:   c.NodePortCIDRs,
		PodCIDRs:        c.PodCIDRs,
		DrainLimit:      c.DrainLimit,
		EndpointChecks:  c.EndpointChecks,
		Interval:        c.Failover.Profile.Interval,
	}
}
