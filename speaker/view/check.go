package view

import (
	"cmp"
	"net/netip"
)

// Check is a probe of another node, which determines whether to forward connections there. Without a Path it probes a
// new TCP endpoint, and has a result as soon as the endpoint may take connections.
type Check struct {
	Node string
	Addr netip.Addr
	Port uint16
	Path string
}

// Compare orders checks.
func (c Check) Compare(d Check) int {
	return cmp.Or(cmp.Compare(c.Node, d.Node), c.Addr.Compare(d.Addr), cmp.Compare(c.Port, d.Port), cmp.Compare(c.Path, d.Path))
}

// CheckResult is the outcome of a Check.
type CheckResult struct {
	Healthy bool
	Weight  uint32
}
