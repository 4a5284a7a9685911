package ipvs

import "net/netip"

// NumSlots is the number of slots of a directed virtual server. A connection belongs to the slot of its hash.
const NumSlots = 256

// Slots name the node of each slot by its index in [Direct].Nodes.
type Slots [NumSlots]uint16

// Directed is the first tier of a virtual server: its connections are distributed over nodes, and each node forwards
// to its own endpoints. It is equal on all nodes with the same endpoints.
type Directed struct {
	// Slots take new connections. Before are those of the time before the last change of each slot: its node still has
	// the connections of that time. Both may be shared and must not be changed.
	Slots, Before *Slots
	// ByClient hashes the client's address without its port (session affinity).
	ByClient bool
	// Closed drops what comes through tunnels: the address is not local yet, so the node would route it.
	Closed bool
}

// Direct is the first tier of one node.
type Direct struct {
	// Self is the address of this node in Nodes.
	Self netip.Addr
	// Nodes are the addresses to which a tunnel leads, on which a tunnel ends, or from which packets in a tunnel are
	// accepted: the InternalIPs of all nodes, one each. An index never changes its node while a Slots names it. Each
	// node assigns its own indexes, so they differ between nodes. The address of an unused index is invalid.
	Nodes []netip.Addr
	// Virtuals are the directed virtual servers.
	Virtuals map[Key]Directed
}
