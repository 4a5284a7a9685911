package view

import "time"

// Conflict is another host that answers for a virtual address.
type Conflict struct {
	// MAC is its hardware address, Interface the local interface that received it.
	MAC       string
	Interface string
	Since     time.Time
}

// Proxy is a host that answers for every address on a network of this node (proxy ARP).
type Proxy struct {
	// MAC is its hardware address, Interface the local interface that received it, Family IPv4 or IPv6.
	MAC, Interface, Family string
	Since                  time.Time
}
