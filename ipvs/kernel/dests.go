package kernel

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

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

// dests returns the real servers of a virtual server of either family.
func (c *conn) dests(key ipvs.Key) (map[netip.AddrPort]ipvs.RealServer, error) {
	reals := map[netip.AddrPort]ipvs.RealServer{}
	start := len(c.out)
	c.begin(cmdGetDest, unix.NLM_F_DUMP)
	c.out = appendService(c.out, key, nil)
	endRequest(c.out, start)
	var unread error
	var errno unix.Errno
	err := c.exchange(func(message []byte) {
		addr, rs, err := readDest(message, key.Addr.Is4())
		if err != nil {
			unread = err
			return
		}
		reals[addr] = rs
	}, func(_ uint32, err unix.Errno) { errno = err })
	switch {
	case err != nil:
		c.drain()
		return nil, err
	case errno != 0:
		return nil, errno
	}
	return reals, unread
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
