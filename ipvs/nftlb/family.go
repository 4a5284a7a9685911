package nftlb

import (
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// family contains all differences between the two families.
type family struct {
	name knftables.Family
	// addrType is nft's type of an address, unreachable its ICMP message for a port without a virtual server.
	addrType, unreachable string
	// number is the family in netlink messages.
	number uint8
	// words is the size of an address in 32-bit registers; source and destination are its offsets in the network
	// header.
	words, source, destination uint32
	// original is the key of conntrack's destination.
	original uint32
}

// families have the indices of package nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {
		name: knftables.IPv4Family, addrType: "ipv4_addr", unreachable: "icmp port-unreachable", number: unix.NFPROTO_IPV4,
		words: 1, source: 12, destination: 16, // RFC 791 section 3.1
		original: unix.NFT_CT_DST_IP,
	},
	nftwatch.IP6: {
		name: knftables.IPv6Family, addrType: "ipv6_addr", unreachable: "icmpv6 port-unreachable", number: unix.NFPROTO_IPV6,
		words: 4, source: 8, destination: 24, // RFC 8200 section 3
		original: unix.NFT_CT_DST_IP6,
	},
}

// familyOf returns the index of the family of a virtual server.
func familyOf(key ipvs.Key) int {
	if key.Addr.Is4() {
		return nftwatch.IP
	}
	return nftwatch.IP6
}

// podsOf returns the sources whose packets are of the family: an interface receives both.
func (f family) podsOf(pods ipvs.PodSources) ipvs.PodSources {
	of := ipvs.PodSources{Interfaces: pods.Interfaces}
	for _, p := range pods.Prefixes {
		if p.Addr().Is4() == f.is4() {
			of.Prefixes = append(of.Prefixes, p)
		}
	}
	return of
}

func (f family) is4() bool { return f.name == knftables.IPv4Family }
