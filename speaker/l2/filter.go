package l2

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
)

const (
	// packetMulticast is the last of the packet types HOST, BROADCAST, MULTICAST that were meant for us; OTHERHOST and
	// OUTGOING follow (include/uapi/linux/if_packet.h).
	packetMulticast = 2
	// exactLimit is how many addresses the filter tells apart one by one. More of them are covered by as many prefixes. It
	// bounds the length of the program, of which the kernel takes 4,096 instructions; where net.core.optmem_max is small it
	// takes less (packetSocket.attach).
	exactLimit = 64
)

// filter returns a program that passes frames that ask for one of the addresses or claim it, and nothing else: other
// stations' traffic must not wake the process. It tells apart as many prefixes as parts says. The tag of a VLAN that has no interface of its own is still on the packet
// and bars it. What the prefixes cover beside the addresses the responder drops.
func filter(c codec, addrs []netip.Addr, parts int) ([]bpf.RawInstruction, error) {
	return bpf.Assemble(append(meant(), wanted(c, addrs, parts)...))
}

// meant lets only frames go on that were sent to this interface.
func meant() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: packetMulticast, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadExtension{Num: bpf.ExtVLANTagPresent},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// wanted looks at the frame itself.
func wanted(c codec, addrs []netip.Addr, parts int) []bpf.Instruction {
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.etherType()), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
	prog = append(prog, c.relevant()...)
	if len(addrs) > 0 {
		all, prefixes := cover(addrs, 1)[0], cover(addrs, parts)
		sender, target := c.offsets()
		for _, off := range []uint32{target, sender} {
			prog = append(prog, match(off, all, prefixes, uint32(c.snap()))...)
		}
	}
	return append(prog, bpf.RetConstant{Val: 0})
}

// match ends the program with snap if the address at an offset is within one of the parts. all covers them and is looked
// at first, so most foreign frames cost little.
func match(off uint32, all netip.Prefix, parts []netip.Prefix, snap uint32) []bpf.Instruction {
	var body []bpf.Instruction
	for _, p := range parts {
		tests := compare(off, p, all.Bits())
		for i, t := range tests {
			// What differs goes on after the end of this part, two instructions after its last test.
			body = append(body, t.load, t.and, bpf.JumpIf{Cond: bpf.JumpEqual, Val: t.value, SkipFalse: uint8(3*(len(tests)-i-1) + 1)})
		}
		body = append(body, bpf.RetConstant{Val: snap})
	}
	var prog []bpf.Instruction
	tests := compare(off, all, 0)
	for i, t := range tests {
		left := uint32(4*(len(tests)-i-1) + len(body))
		prog = append(prog, t.load, t.and, bpf.JumpIf{Cond: bpf.JumpEqual, Val: t.value, SkipTrue: 1}, bpf.Jump{Skip: left})
	}
	return append(prog, body...)
}

// comparison is of one word of an address under a mask.
type comparison struct {
	load, and bpf.Instruction
	value     uint32
}

// compare returns what to compare for a prefix, given that the first known bits are right already.
func compare(off uint32, p netip.Prefix, known int) []comparison {
	var out []comparison
	b := p.Addr().AsSlice()
	for at := 0; at < p.Bits(); at += 32 {
		if at+32 <= known {
			continue
		}
		mask := ^uint32(0)
		if left := p.Bits() - at; left < 32 {
			mask <<= 32 - left
		}
		out = append(out, comparison{
			load:  bpf.LoadAbsolute{Off: off + uint32(at/8), Size: 4},
			and:   bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
			value: binary.BigEndian.Uint32(b[at/8:]) & mask,
		})
	}
	return out
}

// cover returns at most limit prefixes that hold all addresses: the addresses in order, cut where neighbours have the
// least in common. There must be at least one, all of one family.
func cover(addrs []netip.Addr, limit int) []netip.Prefix {
	sorted := slices.Clone(addrs)
	slices.SortFunc(sorted, netip.Addr.Compare)
	sorted = slices.Compact(sorted)
	// cuts are the indexes after which a new prefix begins.
	cuts := make([]int, len(sorted)-1)
	shared := make([]int, len(sorted)-1)
	for i := range cuts {
		cuts[i], shared[i] = i, common(sorted[i], sorted[i+1])
	}
	slices.SortStableFunc(cuts, func(a, b int) int { return shared[a] - shared[b] })
	cuts = cuts[:min(len(cuts), limit-1)]
	slices.Sort(cuts)
	var out []netip.Prefix
	first := 0
	for _, last := range append(cuts, len(sorted)-1) {
		out = append(out, netip.PrefixFrom(sorted[first], common(sorted[first], sorted[last])).Masked())
		first = last + 1
	}
	return out
}

// common returns how many bits two addresses of one family share at their beginning.
func common(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return 8*i + bits.LeadingZeros8(d)
		}
	}
	return a.BitLen()
}
