package direct

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// filterTable drops what is for the UDP port of the tunnels, or leaves for it with this node's address, unless it is
// untracked. Only the rules of this package exempt packets from conntrack: those from and to nodes. So nothing passes
// without these rules, for example after another program has deleted them. Neither does what the node masquerades for a
// Pod, or translates to the tunnel of a node for a Service. The table precedes the tunnels and ends after them.
const filterTable = "ironlb-tunnels"

// setFilter adds or replaces the filter for tunnels of this address.
func (d *Driver) setFilter(self netip.Addr) error {
	i := familyOf(self)
	offset := uint32(12) // of the source in the header of IPv4, and of IPv6
	if self.Is6() {
		offset = 8
	}
	received := []nftbatch.Match{
		nftbatch.Protocol(ipvs.UDP), nftbatch.Tracked(),
		nftbatch.Header(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, binary.BigEndian.AppendUint16(nil, d.cfg.Port)),
	}
	sent := append(received[:len(received):len(received)], nftbatch.Header(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, self.AsSlice()))
	// After IPVS (99) and the translation of the source (100).
	err := d.filter.Replace(families[i].number,
		nftbatch.Chain{Name: "input", Hook: unix.NF_INET_LOCAL_IN, Priority: 300, Drop: received},
		nftbatch.Chain{Name: "postrouting", Hook: unix.NF_INET_POST_ROUTING, Priority: 300, Drop: sent},
	)
	if err != nil {
		return fmt.Errorf("add nftables table %s %s: %w", families[i].name, filterTable, err)
	}
	return nil
}

// removeFilter deletes the filter. The tunnels must not exist.
func (d *Driver) removeFilter() error {
	for i, f := range families {
		if !exists(i) {
			continue
		}
		if err := d.filter.Replace(f.number); err != nil {
			return fmt.Errorf("delete nftables table %s %s: %w", f.name, filterTable, err)
		}
	}
	return nil
}
