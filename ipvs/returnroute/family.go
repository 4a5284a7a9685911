package returnroute

import (
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// family contains the differences between IPv4 and IPv6.
type family struct {
	name   knftables.Family
	title  string
	number int // the kernel's
	// words replaces IP in rules of nftables.
	words *strings.Replacer
	// beyond are addresses for documentation (RFC 5737, RFC 3849): at least one is on no network of a node.
	beyond []netip.Addr
}

// families have the indices of package nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {
		name: knftables.IPv4Family, title: "IPv4", number: unix.AF_INET, words: strings.NewReplacer("IP", "ip"),
		beyond: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, 254}), netip.AddrFrom4([4]byte{198, 51, 100, 254})},
	},
	nftwatch.IP6: {
		name: knftables.IPv6Family, title: "IPv6", number: unix.AF_INET6, words: strings.NewReplacer("IP", "ip6"),
		beyond: []netip.Addr{netip.MustParseAddr("2001:db8:ffff:ffff::fffe"), netip.MustParseAddr("2001:db8:eeee:eeee::fffe")},
	},
}

// supported reports whether the kernel has the family.
func (f family) supported() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return f.number == unix.AF_INET || err == nil
}

// familyOf returns the index of an address's family.
func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return nftwatch.IP
	}
	return nftwatch.IP6
}
