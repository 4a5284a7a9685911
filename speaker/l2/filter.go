package l2

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
)

const (
	// packetMulticast is the last of the packet types HOST, BROADCAST, MULTICAST that are addressed to this node;
	// OTHERHOST and OUTGOING follow (include/uapi/linux/if_packet.h).
	packetMulticast = 2
	// exactLimit is the number of prefixes in the filter: up to so many addresses are matched exactly, more are covered
	// by as many prefixes. It limits the length of the program: the kernel accepts 4,096 instructions, and fewer if
	// net.core.optmem_max is small (packetSocket.attach).
	exactLimit = 64
)

// filter returns a program that passes only frames that request or use one of the addresses: other stations' traffic
// must not wake the process. It matches as many prefixes as parts specifies; the responder drops frames for other
// addresses within the prefixes. A frame with the tag of a VLAN without an interface still has the tag, and does not
// pass.
func filter(c codec, addrs []netip.Addr, parts int) ([]bpf.RawInstruction, error) {
	return bpf.Assemble(append(forThisNode(), wanted(c, addrs, parts)...))
}

// forThisNode passes only frames that were sent to this interface.
func forThisNode() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: packetMulticast, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadExtension{Num: bpf.ExtVLANTagPresent},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// wanted matches the content of the frame.
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

// match ends the program with snap if the address at an offset is within one of the parts. all covers them and is
// compared first, so most foreign frames cost little.
func match(off uint32, all netip.Prefix, parts []netip.Prefix, snap uint32) []bpf.Instruction {
	var body []bpf.Instruction
	for _, p := range parts {
		tests := compare(off, p, all.Bits())
		for i, t := range tests {
			// A mismatch continues after the end of this part, two instructions after its last test.
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

// comparison compares 32 bits of an address under a mask.
type comparison struct {
	load, and bpf.Instruction
	value     uint32
}

// compare returns the comparisons for a prefix whose first known bits already match.
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

// cover returns at most limit prefixes that contain all addresses: the addresses in order, split where neighbors have
// the least in common. There must be at least one address, and all must be of one family.
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

// common returns the length of the common prefix of two addresses of one family.
func common(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return 8*i + bits.LeadingZeros8(d)
		}
	}
	return a.BitLen()
}
