package nft

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// family contains the differences between the tables of IPv4 and IPv6.
type family struct {
	nft knftables.Family
	// number is the family in netlink messages.
	number byte
	// everything is the prefix of all addresses.
	everything netip.Prefix
	// words replaces the placeholders in a rule or the type of a set with the family's keywords.
	words *strings.Replacer
}

// families are in the order of the counts of nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {knftables.IPv4Family, unix.NFPROTO_IPV4, netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		strings.NewReplacer("ADDR", "ipv4_addr", "IP", "ip", "ICMP", "icmp")},
	nftwatch.IP6: {knftables.IPv6Family, unix.NFPROTO_IPV6, netip.PrefixFrom(netip.IPv6Unspecified(), 0),
		strings.NewReplacer("ADDR", "ipv6_addr", "IP", "ip6", "ICMP", "icmpv6")},
}

// familyOf returns the index of an element's family.
func familyOf(e ipvs.Element) int {
	if e.Is4() {
		return 0
	}
	return 1
}
