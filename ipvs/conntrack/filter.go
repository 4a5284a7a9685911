package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Attributes of a request (include/uapi/linux/netfilter/nfnetlink_conntrack.h) that the library does not name.
const (
	ctaFilter          = 25
	ctaFilterOrigFlags = 1

	// net/netfilter/nf_internals.h: the parts of the tuple that must match.
	filterIPDst   = 1 << 1
	filterProto   = 1 << 3
	filterDstPort = 1 << 5
)

// each is the largest number of virtual servers that are listed by its own request; above it, one request lists all
// entries. For every request the kernel scans its full table, which takes 10 ms and more even if it is empty. Each
// returned entry takes 3 µs (BenchmarkClean).
const each = 4

// filter selects the entries of one request: those of a family, AF_UNSPEC for both, of a protocol if it has one, and of
// one virtual server if it has an address.
type filter struct {
	family uint8
	key    ipvs.Key
}

func (f filter) String() string {
	switch {
	case f.key.Addr.IsValid():
		return f.key.String()
	case f.key.Protocol != 0:
		return f.key.Protocol.String()
	}
	return "all protocols"
}

func familyOf(addr netip.Addr) uint8 {
	if addr.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// filters returns the requests that together list the entries of all these virtual servers, in order.
func filters(table ipvs.Table) (all []filter) {
	for _, key := range table.Keys() {
		all = append(all, filter{family: familyOf(key.Addr), key: key})
	}
	if len(all) <= each {
		return all
	}
	common := filter{family: all[0].family, key: ipvs.Key{Protocol: all[0].key.Protocol}}
	for _, f := range all {
		if f.family != common.family || f.key.Protocol != common.key.Protocol {
			return []filter{{}}
		}
	}
	return []filter{common}
}

// attributes returns the filter in the kernel's format: a tuple, and the parts of it that must match. An IPv6 address
// is left out, because ctnetlink_filter_match_tuple (net/netfilter/nf_conntrack_netlink.c) then matches all others but
// it.
func (f filter) attributes() []*nl.RtAttr {
	if f.key.Protocol == 0 {
		return nil
	}
	flags := uint32(filterProto)
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	if f.key.Addr.Is4() {
		flags |= filterIPDst
		tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_DST, f.key.Addr.AsSlice())
	}
	proto := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{byte(f.key.Protocol)})
	if f.key.Port != 0 {
		flags |= filterDstPort
		proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, f.key.Port))
	}
	which := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	which.AddRtAttr(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags))
	return []*nl.RtAttr{tuple, which}
}
