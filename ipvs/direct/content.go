package direct

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// none is the peer of a slot whose packets stay here.
const none = 1<<16 - 1

// content are the peers to which the packets of each slot are sent, by their index.
type content struct {
	peers    [ipvs.NumSlots]uint16
	byClient bool
}

// newContent returns a content without peers.
func newContent(byClient bool) content {
	c := content{byClient: byClient}
	for slot := range c.peers {
		c.peers[slot] = none
	}
	return c
}

// empty reports whether the packets of every slot stay here.
func (c *content) empty() bool {
	for _, peer := range c.peers {
		if peer != none {
			return false
		}
	}
	return true
}

// peersOf are the peers of one node: a slot of the node itself has none.
type peersOf struct {
	self  int // -1 if the node is not in the list
	nodes []netip.Addr
}

func newPeers(want ipvs.Direct) peersOf {
	p := peersOf{self: -1, nodes: want.Nodes}
	for i, addr := range want.Nodes {
		if addr == want.Self {
			p.self = i
		}
	}
	return p
}

// contents returns the content of each tier for a virtual server: for slots of other nodes, and for its own slots that
// another node had before. It fails if a slot has no node.
func (p peersOf) contents(d ipvs.Directed) (c [numTiers]content, err error) {
	if d.Slots == nil {
		return c, fmt.Errorf("%w: no slots", ipvs.ErrInvalid)
	}
	c[first], c[second] = newContent(d.ByClient), newContent(d.ByClient)
	for slot, node := range d.Slots {
		if err := p.check(node); err != nil {
			return c, err
		}
		if int(node) != p.self {
			c[first].peers[slot] = node
			continue
		}
		if d.Before != nil && d.Before[slot] != node && p.check(d.Before[slot]) == nil { // a deleted node has no connections
			c[second].peers[slot] = d.Before[slot]
		}
	}
	return c, nil
}

func (p peersOf) check(node uint16) error {
	if int(node) >= len(p.nodes) || !p.nodes[node].IsValid() {
		return fmt.Errorf("%w: a slot of node %d, which is not in the list", ipvs.ErrInvalid, node)
	}
	return nil
}

// maxPeers is the number of gateway addresses.
const maxPeers = 1<<14 - 1<<8 - 1

// network4 is the network of the IPv4 gateways. Each tunnel has an address of it, whose route leads to the device. It
// has none of the link-local addresses that clouds and DNS caches use.
var network4 = netip.MustParsePrefix("169.254.64.0/18")

// firstGateway4 are the last two octets of the first gateway.
const firstGateway4 = 65 << 8

// gateway4 and gateway6 return the address of a peer behind either tunnel. It selects a neighbor of the device and is
// never part of a packet, so it means nothing on other nodes.
func gateway4(peer uint16) netip.Addr {
	a := [4]byte{169, 254}
	binary.BigEndian.PutUint16(a[2:], firstGateway4+peer)
	return netip.AddrFrom4(a)
}

func gateway6(peer uint16) netip.Addr {
	a := [16]byte{0: 0xfe, 1: 0x80, 13: 1}
	binary.BigEndian.PutUint16(a[14:], peer)
	return netip.AddrFrom16(a)
}

// peerOf is the reverse of both.
func peerOf(gateway netip.Addr) (peer uint16, ok bool) {
	raw := gateway.AsSlice()
	if len(raw) == 0 {
		return 0, false
	}
	peer = binary.BigEndian.Uint16(raw[len(raw)-2:])
	if gateway.Is4() {
		peer -= firstGateway4
		return peer, peer < maxPeers && gateway4(peer) == gateway
	}
	return peer, peer < maxPeers && gateway6(peer) == gateway
}
