package kernel

import (
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Commands and attributes of include/uapi/linux/ip_vs.h.
const (
	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8
	cmdSetConfig  = 12
	cmdGetConfig  = 13

	attrService       = 1
	attrDest          = 2
	attrTimeoutTCP    = 4
	attrTimeoutTCPFin = 5
	attrTimeoutUDP    = 6

	svcFamily    = 1
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
	svcMark      = 5
	svcScheduler = 6
	svcFlags     = 7
	svcTimeout   = 8
	svcNetmask   = 9

	destAddr    = 1
	destPort    = 2
	destForward = 3
	destWeight  = 4
	destUpper   = 5
	destLower   = 6

	forwardMask = 0x7

	genlVersion = 1
	genlHeader  = 4
)

// Persistence always uses the client's full address.
const (
	netmaskIPv4 = math.MaxUint32 // a mask
	netmaskIPv6 = 128            // a length (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_add_service)
)

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// beginRequest appends the headers of a request, which endRequest completes.
func beginRequest(b []byte, family, flags uint16, seq uint32, command uint8) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, family)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, command, genlVersion, 0, 0)
}

// endRequest writes the length of the request that begins at start.
func endRequest(b []byte, start int) {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
}

// appendAttr appends an attribute with its padding.
func appendAttr(b []byte, kind uint16, value ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func appendUint16(b []byte, kind, value uint16) []byte {
	var v [2]byte
	binary.NativeEndian.PutUint16(v[:], value)
	return appendAttr(b, kind, v[:]...)
}

func appendUint32(b []byte, kind uint16, value uint32) []byte {
	var v [4]byte
	binary.NativeEndian.PutUint32(v[:], value)
	return appendAttr(b, kind, v[:]...)
}

func appendAddr(b []byte, kind uint16, addr netip.Addr) []byte {
	if addr.Is4() {
		v := addr.As4()
		return appendAttr(b, kind, v[:]...)
	}
	v := addr.As16()
	return appendAttr(b, kind, v[:]...)
}

// beginNest appends the header of a nested attribute.
func beginNest(b []byte, kind uint16) []byte {
	return appendAttr(b, kind|unix.NLA_F_NESTED)
}

func endNest(b []byte, start int) {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
}

// appendService appends a virtual server; settings are only needed to add or edit it.
func appendService(b []byte, key ipvs.Key, settings *ipvs.Settings) []byte {
	start := len(b)
	family, netmask := uint16(unix.AF_INET), uint32(netmaskIPv4)
	if key.Addr.Is6() {
		family, netmask = unix.AF_INET6, netmaskIPv6
	}
	b = beginNest(b, attrService)
	b = appendUint16(b, svcFamily, family)
	b = appendUint16(b, svcProtocol, uint16(key.Protocol))
	b = appendAddr(b, svcAddr, key.Addr)
	b = appendAttr(b, svcPort, byte(key.Port>>8), byte(key.Port))
	if settings != nil {
		b = appendAttr(b, svcScheduler, append([]byte(settings.Scheduler), 0)...)
		var flags [8]byte // flags and mask
		binary.NativeEndian.PutUint32(flags[:], uint32(settings.Flags&^ipvs.Hashed))
		binary.NativeEndian.PutUint32(flags[4:], math.MaxUint32)
		b = appendAttr(b, svcFlags, flags[:]...)
		b = appendUint32(b, svcTimeout, settings.Timeout)
		b = appendUint32(b, svcNetmask, netmask)
	}
	endNest(b, start)
	return b
}

// appendDest appends a real server; rs is only needed to add or edit it.
func appendDest(b []byte, addr netip.AddrPort, rs *ipvs.RealServer) []byte {
	start := len(b)
	b = beginNest(b, attrDest)
	b = appendAddr(b, destAddr, addr.Addr())
	b = appendAttr(b, destPort, byte(addr.Port()>>8), byte(addr.Port()))
	if rs != nil {
		b = appendUint32(b, destForward, uint32(rs.Forward))
		b = appendUint32(b, destWeight, rs.Weight)
		b = appendUint32(b, destUpper, 0)
		b = appendUint32(b, destLower, 0)
	}
	endNest(b, start)
	return b
}

// attributes iterates over attributes by kind, and stops at a truncated one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofNlAttr || size > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(kind, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

func uint32Of(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func uint16Of(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

func portOf(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// addrOf parses an address, which the kernel sends in 16 octets for either family.
func addrOf(b []byte, v4 bool) netip.Addr {
	switch {
	case v4 && len(b) >= 4:
		return netip.AddrFrom4([4]byte(b))
	case !v4 && len(b) >= 16:
		return netip.AddrFrom16([16]byte(b))
	}
	return netip.Addr{}
}

var errMessage = errors.New("the kernel sent a message that cannot be read")

// readService parses a virtual server. One of a firewall mark has no address; it is not IronLB's, and ok is false.
func readService(message []byte) (key ipvs.Key, settings ipvs.Settings, ok bool, err error) {
	if len(message) < genlHeader {
		return key, settings, false, errMessage
	}
	var addr []byte
	var family uint16
	mark := false
	for kind, nest := range attributes(message[genlHeader:]) {
		if kind != attrService {
			continue
		}
		for kind, v := range attributes(nest) {
			switch kind {
			case svcFamily:
				family = uint16Of(v)
			case svcProtocol:
				key.Protocol = ipvs.Protocol(uint16Of(v))
			case svcAddr:
				addr = v
			case svcPort:
				key.Port = portOf(v)
			case svcMark:
				mark = uint32Of(v) != 0
			case svcScheduler:
				settings.Scheduler = schedulerOf(v)
			case svcFlags:
				settings.Flags = ipvs.Flags(uint32Of(v)) &^ ipvs.Hashed
			case svcTimeout:
				settings.Timeout = uint32Of(v)
			}
		}
	}
	// The kernel keeps a time-out without persistence; like ipvsadm, this package ignores it.
	if settings.Flags&ipvs.Persistent == 0 {
		settings.Timeout = 0
	}
	if mark {
		return key, settings, false, nil
	}
	if key.Addr = addrOf(addr, family == unix.AF_INET); !key.Addr.IsValid() {
		return key, settings, false, errMessage
	}
	return key, settings, true, nil
}

// schedulers are the names that occur, so that a listing does not allocate a string for each.
var schedulers = [...]string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh"}

func schedulerOf(v []byte) string {
	for i, c := range v {
		if c == 0 {
			v = v[:i]
			break
		}
	}
	for _, name := range schedulers {
		if string(v) == name {
			return name
		}
	}
	return string(v)
}

// readDest parses a real server of a virtual server of the family.
func readDest(message []byte, v4 bool) (addr netip.AddrPort, rs ipvs.RealServer, err error) {
	if len(message) < genlHeader {
		return addr, rs, errMessage
	}
	var ip netip.Addr
	var port uint16
	for kind, nest := range attributes(message[genlHeader:]) {
		if kind != attrDest {
			continue
		}
		for kind, v := range attributes(nest) {
			switch kind {
			case destAddr:
				ip = addrOf(v, v4)
			case destPort:
				port = portOf(v)
			case destForward:
				rs.Forward = ipvs.Forward(uint32Of(v) & forwardMask)
			case destWeight:
				rs.Weight = uint32Of(v)
			}
		}
	}
	if !ip.IsValid() {
		return addr, rs, errMessage
	}
	return netip.AddrPortFrom(ip, port), rs, nil
}
