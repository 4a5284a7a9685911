package pools

import "net/netip"

// ReturnRoute is a router through which the answers of a pool may leave a node.
type ReturnRoute struct {
	Gateway netip.Addr
	// Interface towards the gateway; empty for any with the gateway's network.
	Interface string
}
