package direct

import (
	"net/netip"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// family contains the differences between the tables of IPv4 and IPv6.
type family struct {
	name knftables.Family
	// addrType is nft's type of an address.
	addrType string
	// words replaces ADDR and IP in rules and types.
	words *strings.Replacer
	// headers are the lengths of the network and the TCP header, and vxlan is that of all headers of a tunnel.
	headers, vxlan int
	gateway        func(peer uint16) netip.Addr
}

// families have the indices of package nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {
		name: knftables.IPv4Family, addrType: "ipv4_addr", words: strings.NewReplacer("ADDR", "ipv4_addr", "IP", "ip"),
		headers: 20 + 20, vxlan: 20 + 8 + 8 + 14, gateway: gateway4,
	},
	nftwatch.IP6: {
		name: knftables.IPv6Family, addrType: "ipv6_addr", words: strings.NewReplacer("ADDR", "ipv6_addr", "IP", "ip6"),
		headers: 40 + 20, vxlan: 40 + 8 + 8 + 14, gateway: gateway6,
	},
}

// familyOf returns the index of an address's family.
func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return nftwatch.IP
	}
	return nftwatch.IP6
}
