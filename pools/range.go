package pools

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
)

// Range contains the addresses from First to Last, both included, of one family.
type Range struct {
	First, Last netip.Addr
}

// String returns the range in the form of a pool entry.
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Family returns the family of the addresses.
func (r Range) Family() Family { return FamilyOf(r.First) }

// Contains reports whether the address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Overlaps reports whether the ranges share an address.
func (r Range) Overlaps(o Range) bool {
	return r.First.BitLen() == o.First.BitLen() && r.First.Compare(o.Last) <= 0 && o.First.Compare(r.Last) <= 0
}

// Size returns the number of addresses, at most the largest int64.
func (r Range) Size() int64 { return r.size().int64() }

// LastOf returns the highest address of the prefix.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As16()
	host := p.Addr().BitLen() - p.Bits()
	for i := 15; i >= 0 && host > 0; i, host = i-1, host-8 {
		b[i] |= byte(1<<min(host, 8) - 1)
	}
	if p.Addr().Is4() {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

// u128 counts addresses. A full family fits except for its last address.
type u128 struct{ hi, lo uint64 }

func fromAddr(a netip.Addr) u128 {
	b := a.As16()
	return u128{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (x u128) add(y u128) u128 {
	lo, c := bits.Add64(x.lo, y.lo, 0)
	hi, c := bits.Add64(x.hi, y.hi, c)
	if c != 0 {
		return u128{math.MaxUint64, math.MaxUint64}
	}
	return u128{hi, lo}
}

func (x u128) sub(y u128) u128 {
	lo, b := bits.Sub64(x.lo, y.lo, 0)
	hi, b := bits.Sub64(x.hi, y.hi, b)
	if b != 0 {
		return u128{}
	}
	return u128{hi, lo}
}

func (x u128) int64() int64 {
	if x.hi != 0 || x.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(x.lo)
}

func (r Range) size() u128 {
	return fromAddr(r.Last).sub(fromAddr(r.First)).add(u128{0, 1})
}

// Prefixes returns the smallest list of prefixes that covers exactly the range, in order.
func (r Range) Prefixes() []netip.Prefix {
	var out []netip.Prefix
	for first := r.First; ; first = LastOf(out[len(out)-1]).Next() {
		width := first.BitLen()
		for width > 0 {
			wider, err := first.Prefix(width - 1)
			if err != nil || wider.Addr() != first || r.Last.Less(LastOf(wider)) {
				break
			}
			width--
		}
		out = append(out, netip.PrefixFrom(first, width))
		if LastOf(out[len(out)-1]) == r.Last {
			return out
		}
	}
}
