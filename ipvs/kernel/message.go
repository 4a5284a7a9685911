package kernel

import (
	"encoding/binary"
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

	attrService = 1
	attrDest    = 2

	svcFamily    = 1
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
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
	b = beginNest(b, attrService)
	b = appendUint16(b, svcFamily, familyOf(key.Addr))
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
		b = appendUint32(b, svcNetmask, netmaskOf(key.Addr))
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
