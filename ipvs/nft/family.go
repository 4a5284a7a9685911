package nft

import (
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
)

// family is what differs between the tables of IPv4 and IPv6.
type family struct {
	nft knftables.Family
	// number is the family in a notification (NFPROTO_*).
	number byte
	// words put the family's own words into a rule or the type of a set.
	words *strings.Replacer
}

// families are in the order of their index.
var families = [...]family{
	{knftables.IPv4Family, unix.NFPROTO_IPV4, strings.NewReplacer("ADDR", "ipv4_addr", "IP", "ip", "ICMP", "icmp")},
	{knftables.IPv6Family, unix.NFPROTO_IPV6, strings.NewReplacer("ADDR", "ipv6_addr", "IP", "ip6", "ICMP", "icmpv6")},
}

// familyOf returns the index of an element's family.
func familyOf(e ipvs.Element) int {
	if e.Is4() {
		return 0
	}
	return 1
}
