package view

import "net/netip"

// PoolReturn is the return route of a pool on this node in one family.
type PoolReturn struct {
	Pool string
	IPv4 bool
	// Gateway and Interface are invalid and empty for none, for the reason in Missing.
	Gateway   netip.Addr
	Interface string
	Missing   string
	// InEffect is set while answers leave by it. A plan does not set it.
	InEffect bool
}

// Tunnels are the tunnels of direct forwarding.
type Tunnels struct {
	// Unable is why the node cannot use tunnels, empty if it can.
	Unable string
	// UnableIPv6 is why it cannot use them for IPv6, empty if it can or if Unable is set.
	UnableIPv6 string
	// MTU is in octets, 0 without tunnels.
	MTU int
	// VirtualServers is the number that is forwarded directly.
	VirtualServers int
}
