package view

// Tunnels are the tunnels of direct forwarding.
type Tunnels struct {
	// Unable is why the node cannot use tunnels, empty if it can.
	Unable string
	// MTU is in octets, 0 without tunnels.
	MTU int
	// VirtualServers is the number that is forwarded directly.
	VirtualServers int
}
