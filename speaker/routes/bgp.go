package routes

import (
	"net/netip"

	"github.com/ironlb/ironlb/speaker/incremental"
)

// BGP is the full desired state of the BGP daemon on this node: its peers and the routes that it announces to them.
type BGP struct {
	// RouterID of this node, an IPv4 address, for peers that request no other.
	RouterID netip.Addr
	// NodeDecommissioning is set while the node is being decommissioned: a BGP daemon that ends then is not expected to
	// return.
	NodeDecommissioning bool
	// Peers by the name of their BGPPeer.
	Peers map[string]Peer
	// Routes by prefix.
	Routes map[netip.Prefix]Route
	// Serial of the last change; 0 if it had none.
	Serial uint64
}

// RouterIDOf returns the router ID for a peer.
func (b *BGP) RouterIDOf(peer string) netip.Addr {
	if id := b.Peers[peer].RouterID; id.IsValid() {
		return id
	}
	return b.RouterID
}

// Apply applies the change to b.
func (b *BGP) Apply(c Change) {
	if c.Full || b.Peers == nil {
		b.Peers, b.Routes = map[string]Peer{}, map[netip.Prefix]Route{}
	}
	b.RouterID, b.NodeDecommissioning = c.RouterID, c.NodeDecommissioning
	if c.Serial != 0 {
		b.Serial = c.Serial
	}
	for name, p := range c.Peers {
		if p == nil {
			delete(b.Peers, name)
		} else {
			b.Peers[name] = *p
		}
	}
	for prefix, r := range c.Routes {
		incremental.Set(b.Routes, prefix, r, len(r) > 0)
	}
}

// Change is a change of BGP, from the planner to the BGP daemon. Peers and Routes that are nil are deleted.
type Change struct {
	// Full is set if the change is a full state: anything missing is deleted.
	Full bool
	// RouterID and NodeDecommissioning are always set.
	RouterID            netip.Addr
	NodeDecommissioning bool `json:",omitempty"`
	Peers               map[string]*Peer
	Routes              map[netip.Prefix]Route
	// Serial increases with each change of a writer that waits for its changes to be applied.
	Serial uint64 `json:",omitempty"`
}
