package nftlb

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// layout assigns real servers to the slots of a virtual server. The slots from 0 to slots-1 are selectable. A real
// server without one of them has a slot from idleSlot on, where it is only stored.
type layout struct {
	slots int
	at    map[uint32]netip.AddrPort
}

const (
	// idleSlot is the first slot that is never selected.
	idleSlot = 1 << 20
	// maxSlots limits the slots of a virtual server whose weights have no small ratio; with more real servers than that
	// each has one slot.
	maxSlots = 256
	// consistentSlots is the fixed number of slots of a consistent hash. The kernel's own table of mh has about 4093
	// (CONFIG_IP_VS_MH_TAB_INDEX); with this number the share of a real server is off by a few percent.
	consistentSlots = 251
)

// lay assigns the slots of a virtual server, and keeps a real server's existing slots where possible. The result
// depends on nothing else.
func lay(have layout, vs ipvs.VirtualServer) layout {
	how := schedulerOf(vs.Scheduler)
	shares := share(how, vs.RealServers)
	if how.consistent && len(shares) > 0 {
		return layConsistent(have, shares, vs.RealServers)
	}
	next := layout{at: make(map[uint32]netip.AddrPort, len(vs.RealServers))}
	for _, n := range shares {
		next.slots += n
	}
	var empty []uint32
	for slot := range uint32(next.slots) {
		real, taken := have.at[slot]
		if taken && shares[real] > 0 {
			shares[real]--
			next.at[slot] = real
		} else {
			empty = append(empty, slot)
		}
	}
	for _, real := range slices.SortedFunc(maps.Keys(shares), netip.AddrPort.Compare) {
		for range shares[real] {
			next.at[empty[0]] = real
			empty = empty[1:]
		}
	}
	next.layIdle(have, vs.RealServers)
	return next
}

// layIdle gives an idle slot to every real server that has no other.
func (l *layout) layIdle(have layout, reals map[netip.AddrPort]ipvs.RealServer) {
	idle := maps.Clone(reals)
	for _, real := range l.at {
		delete(idle, real)
	}
	for slot, real := range have.at {
		if _, wanted := idle[real]; wanted && slot >= idleSlot {
			l.at[slot] = real
			delete(idle, real)
		}
	}
	slot := uint32(idleSlot)
	for _, real := range slices.SortedFunc(maps.Keys(idle), netip.AddrPort.Compare) {
		for ; l.at[slot].IsValid(); slot++ {
		}
		l.at[slot] = real
	}
}

// share returns the number of slots for each real server that gets connections.
func share(how scheduler, reals map[netip.AddrPort]ipvs.RealServer) map[netip.AddrPort]int {
	shares := make(map[netip.AddrPort]int, len(reals))
	var divisor, total int
	for addr, rs := range reals {
		if rs.Weight == 0 {
			continue
		}
		shares[addr] = int(rs.Weight)
		if !how.weighted {
			shares[addr] = 1
		}
		divisor, total = gcd(divisor, shares[addr]), total+shares[addr]
	}
	switch {
	case len(shares) == 0:
	case how.consistent:
	case total/divisor <= max(maxSlots, len(shares)):
		for addr := range shares {
			shares[addr] /= divisor
		}
	default:
		for addr, weight := range shares {
			shares[addr] = max(1, (weight*maxSlots+total/2)/total)
		}
	}
	return shares
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// layConsistent gives each slot to the real server with the greatest score (rendezvous hashing, weighted as
// -weight/ln(score)). A deleted one gives up only its own slots, an added one takes its share evenly.
func layConsistent(have layout, shares map[netip.AddrPort]int, reals map[netip.AddrPort]ipvs.RealServer) layout {
	next := layout{slots: consistentSlots, at: make(map[uint32]netip.AddrPort, consistentSlots)}
	order := slices.SortedFunc(maps.Keys(shares), netip.AddrPort.Compare)
	for slot := range uint32(consistentSlots) {
		best := math.Inf(-1)
		seed := binary.BigEndian.AppendUint32(nil, slot)
		for _, real := range order {
			if s := -float64(shares[real]) / math.Log(score(seed, real)); s > best {
				best, next.at[slot] = s, real
			}
		}
	}
	next.layIdle(have, reals)
	return next
}

// score returns a number between 0 and 1 that depends on both evenly.
func score(seed []byte, real netip.AddrPort) float64 {
	h := fnv.New64a()
	_, _ = h.Write(seed)
	_, _ = h.Write(real.Addr().AsSlice())
	_, _ = h.Write(binary.BigEndian.AppendUint16(nil, real.Port()))
	x := h.Sum64() // the last octets affect only the low bits; the finalizer of MurmurHash3 spreads them
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return (float64(x>>11) + 0.5) / (1 << 53)
}
