package l2

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"golang.org/x/net/bpf"
)

const (
	// packetMulticast is the last of the packet types HOST, BROADCAST, MULTICAST that were meant for us; OTHERHOST and
	// OUTGOING follow (include/uapi/linux/if_packet.h).
	packetMulticast = 2
	// exactLimit is how many addresses the filter compares one by one before it falls back to their common prefix. It must
	// stay below 255, the longest jump of classic BPF.
	exactLimit = 64
)

// filter returns a program that passes ARP requests for the addresses, and nothing else: other stations' traffic must
// not wake the process. The tag of a VLAN that has no interface of its own is still on the packet and bars it. Above
// exactLimit addresses it passes requests for their common prefix; the responder looks again in any case.
func filter(addrs []netip.Addr) ([]bpf.RawInstruction, error) {
	head := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: packetMulticast, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadExtension{Num: bpf.ExtVLANTagPresent},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherTypeARP, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 20, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: opRequest, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 38, Size: 4}, // target IP
	}
	return bpf.Assemble(append(head, match(addrs)...))
}

// match returns the end of the filter: the target address is loaded.
func match(addrs []netip.Addr) []bpf.Instruction {
	var prog []bpf.Instruction
	switch {
	case len(addrs) > exactLimit:
		network, mask := common(addrs)
		prog = append(prog,
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: network, SkipTrue: 1})
	default:
		for i, a := range addrs {
			prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number(a), SkipTrue: uint8(len(addrs) - i)})
		}
	}
	return append(prog, bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: frameLen})
}

// common returns the longest prefix that all addresses share.
func common(addrs []netip.Addr) (network, mask uint32) {
	first := number(addrs[0])
	var differ uint32
	for _, a := range addrs {
		differ |= first ^ number(a)
	}
	mask = ^uint32(0)
	if differ != 0 {
		mask <<= bits.Len32(differ)
	}
	return first & mask, mask
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}
