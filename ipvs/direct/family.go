package direct

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// family contains the differences between the tables of IPv4 and IPv6.
type family struct {
	name   knftables.Family
	number byte // the kernel's
	// addrType is nft's type of an address.
	addrType string
	// words replaces ADDR and IP in rules and types, and what concerns ICMP errors: ICMP and ICMPERROR match them,
	// ERRORKEY, ERRORADDR and ERRORPORT are the source (address, protocol, port) and the destination of the packet in
	// one, whose header follows 8 octets of ICMP.
	words *strings.Replacer
	// headers are the lengths of the network and the TCP header, and vxlan is that of all headers of a tunnel.
	headers, vxlan int
	gateway        func(peer uint16) netip.Addr
}

// families have the indices of package nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {
		name: knftables.IPv4Family, number: unix.NFPROTO_IPV4, addrType: "ipv4_addr", words: strings.NewReplacer(
			"ICMPERROR", "icmp type { destination-unreachable, time-exceeded, parameter-problem }", "ICMP", "icmp",
			"ERRORKEY", "@th,160,32 . @th,136,8 . @th,224,16", "ERRORADDR", "@th,192,32", "ERRORPORT", "@th,240,16",
			"ADDR", "ipv4_addr", "IP", "ip",
		),
		headers: 20 + 20, vxlan: 20 + 8 + 8 + 14, gateway: gateway4,
	},
	nftwatch.IP6: {
		name: knftables.IPv6Family, number: unix.NFPROTO_IPV6, addrType: "ipv6_addr", words: strings.NewReplacer(
			"ICMPERROR", "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
			"ICMP", "ipv6-icmp",
			"ERRORKEY", "@th,128,128 . @th,112,8 . @th,384,16", "ERRORADDR", "@th,256,128", "ERRORPORT", "@th,400,16",
			"ADDR", "ipv6_addr", "IP", "ip6",
		),
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
