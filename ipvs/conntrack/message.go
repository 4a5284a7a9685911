package conntrack

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Attributes of a message (include/uapi/linux/netfilter/nfnetlink_conntrack.h) that the library does not name.
const (
	ctaStatus = 3
	ctaID     = 12
	ctaZone   = 18
	// ctaTupleZone is in a tuple.
	ctaTupleZone = 3

	// statusSeenReply is IPS_SEEN_REPLY (include/uapi/linux/netfilter/nf_conntrack_common.h).
	statusSeenReply = 1 << 1
)

// entry contains the used parts of a conntrack entry.
type entry struct {
	// to is the original destination, from the source of the replies.
	to   ipvs.Key
	from netip.AddrPort
	// answered is set once there was a packet in the reply direction.
	answered bool
	// identity are the attributes that identify the entry, as sent by the kernel. They include the tuple: a request
	// without one deletes all entries (ctnetlink_del_conntrack, net/netfilter/nf_conntrack_netlink.c).
	identity []byte
}

// parse parses a message of the kernel. It returns false if the message is not about an entry with ports, or about one
// of another zone than the default: virtual servers are in that.
func parse(message []byte) (entry, bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return entry{}, false
	}
	e := entry{answered: true} // an entry without a status is kept
	var orig, reply tuple
	for kind, a := range attributes(message[nl.SizeofNfgenmsg:]) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			orig = parseTuple(a.value)
		case nl.CTA_TUPLE_REPLY:
			reply = parseTuple(a.value)
			continue
		case ctaStatus:
			e.answered = len(a.value) != 4 || binary.BigEndian.Uint32(a.value)&statusSeenReply != 0
			continue
		case ctaZone: // the kernel sends none for the default zone
			return entry{}, false
		case ctaID:
		default:
			continue
		}
		e.identity = append(e.identity, a.full...)
	}
	if !orig.dst.IsValid() || !reply.src.IsValid() {
		return entry{}, false
	}
	e.to = ipvs.Key{Addr: orig.dst, Protocol: ipvs.Protocol(orig.protocol), Port: orig.dstPort}
	e.from = netip.AddrPortFrom(reply.src, reply.srcPort)
	return e, true
}

// tuple is one direction of an entry.
type tuple struct {
	src, dst         netip.Addr
	protocol         uint8
	srcPort, dstPort uint16
}

func parseTuple(b []byte) (t tuple) {
	for kind, a := range attributes(b) {
		switch kind {
		case ctaTupleZone: // in one direction only
			return tuple{}
		case nl.CTA_TUPLE_IP:
			for kind, a := range attributes(a.value) {
				addr, _ := netip.AddrFromSlice(a.value)
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					t.src = addr
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					t.dst = addr
				}
			}
		case nl.CTA_TUPLE_PROTO:
			for kind, a := range attributes(a.value) {
				switch {
				case kind == nl.CTA_PROTO_NUM && len(a.value) == 1:
					t.protocol = a.value[0]
				case kind == nl.CTA_PROTO_SRC_PORT && len(a.value) == 2:
					t.srcPort = binary.BigEndian.Uint16(a.value)
				case kind == nl.CTA_PROTO_DST_PORT && len(a.value) == 2:
					t.dstPort = binary.BigEndian.Uint16(a.value)
				}
			}
		}
	}
	return t
}

// attribute is one netlink attribute: full with its header and padding, value without.
type attribute struct{ full, value []byte }

// attributes iterates over attributes by kind, and stops at a truncated one.
func attributes(b []byte) iter.Seq2[int, attribute] {
	const header = unix.SizeofNlAttr
	return func(yield func(int, attribute) bool) {
		for len(b) >= header {
			size := int(binary.NativeEndian.Uint16(b))
			if size < header || size > len(b) {
				return
			}
			kind := int(binary.NativeEndian.Uint16(b[2:]) & nl.NLA_TYPE_MASK)
			full := b[:min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b))]
			if !yield(kind, attribute{full: full, value: b[header:size]}) {
				return
			}
			b = b[len(full):]
		}
	}
}
