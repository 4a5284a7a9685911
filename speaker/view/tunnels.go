package view

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
