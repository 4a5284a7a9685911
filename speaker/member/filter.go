package member

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// payload is the offset of a datagram for the filter of a UDP socket: after the header (RFC 768).
	payload = 8
	// netOff is the offset of the network header for a filter (SKF_NET_OFF of linux/filter.h), wherever the socket's
	// own data begins.
	netOff = 0xfff00000
	// sample is the rate at which datagrams of another version, cluster or key pass the filter, one in sample, so that
	// the metrics and the log can report them.
	sample = 64
	// packetBroadcast and packetMulticast are PACKET_BROADCAST and PACKET_MULTICAST of linux/if_packet.h.
	packetBroadcast, packetMulticast = 1, 2
)

// socketFilter is the input of a socket filter.
type socketFilter struct {
	cluster uint64
	keys    [][4]byte
	// indexes are the interfaces on which broadcasts are accepted. The group has a socket per interface.
	indexes []int
}

// program returns a filter program that passes datagrams of this version and cluster with one of the keys' ids. A flood
// of anything else neither wakes the process nor fills the buffer. The process checks the tag.
func (v socketFilter) program(s *socket) []bpf.Instruction {
	var p []bpf.Instruction
	drop := bpf.RetConstant{Val: 0}
	if s.index == 0 {
		if s.v6 { // the group has its own sockets; IPV6_MULTICAST_ALL would exclude broadcasts too
			group := group6.As16()
			p = append(p,
				bpf.LoadAbsolute{Off: netOff + 24, Size: 4}, // the destination (RFC 8200, 3)
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(group[:]), SkipTrue: 3},
				bpf.LoadAbsolute{Off: netOff + 36, Size: 4},
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(group[12:]), SkipTrue: 1},
				drop)
		}
		n, class := uint8(len(v.indexes)), s.ownClass()
		p = append(p,
			bpf.LoadExtension{Num: bpf.ExtType},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetBroadcast, SkipTrue: 1},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: packetMulticast, SkipTrue: n + 2 + uint8(len(class))},
			bpf.LoadExtension{Num: bpf.ExtInterfaceIndex})
		for i, index := range v.indexes {
			p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(index), SkipTrue: n - uint8(i)})
		}
		p = append(append(p, drop), class...)
	}
	n := uint8(len(v.keys))
	p = append(p,
		bpf.LoadAbsolute{Off: payload, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 'I'<<8 | 'L', SkipTrue: 1},
		drop,
		bpf.LoadAbsolute{Off: payload + 2, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: wireVersion, SkipTrue: n + 5},
		bpf.LoadAbsolute{Off: payload + 8, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(v.cluster >> 32), SkipTrue: n + 3},
		bpf.LoadAbsolute{Off: payload + 12, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(v.cluster), SkipTrue: n + 1},
		bpf.LoadAbsolute{Off: payload + 4, Size: 4})
	for i, id := range v.keys {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(id[:]), SkipTrue: n - uint8(i) + 2})
	}
	p = append(p,
		bpf.LoadExtension{Num: bpf.ExtRand},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: sample - 1, SkipTrue: 1},
		drop,
		bpf.RetConstant{Val: 0xffff})
	return p
}

// attach attaches a filter to the socket.
func (s *socket) attach(v socketFilter) error {
	if err := s.attachProgram(v.program(s), unix.SO_ATTACH_FILTER); err != nil {
		return fmt.Errorf("filter the %s socket for the speakers' datagrams: %w", s.family(), err)
	}
	return nil
}

// attachProgram attaches a program to the socket by one of its options.
func (s *socket) attachProgram(instructions []bpf.Instruction, by int) error {
	program, err := bpf.Assemble(instructions)
	if err != nil {
		return fmt.Errorf("assemble the program: %w", err)
	}
	raw := make([]unix.SockFilter, len(program))
	for i, p := range program {
		raw[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	prog := &unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}
	if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, by, prog); err != nil {
		return fmt.Errorf("attach the program: %w", err)
	}
	return nil
}

// dropped returns how many datagrams the kernel has dropped at the socket since the last call: by the filter, or
// because the buffer was full.
func (s *socket) dropped() uint32 {
	var info [unix.SK_MEMINFO_VARS]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	now := info[unix.SK_MEMINFO_DROPS]
	added := now - s.drops
	s.drops = now
	return added
}
