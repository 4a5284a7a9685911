package pools

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
)

// Range contains the addresses from First to Last, both included, of one family.
type Range struct {
	First, Last netip.Addr
}

// u128 counts addresses. A full family fits except for its last address.
type u128 struct{ hi, lo uint64 }

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

// ParseRanges parses the entries of a pool. The error names the entry and the fix.
func ParseRanges(entries []string) ([]Range, error) {
	if len(entries) == 0 {
		return nil, fmt.Errorf("addresses: no entry: list a CIDR, a first-last range or an address")
	}
	out := make([]Range, 0, len(entries))
	for i, e := range entries {
		r, err := ParseRange(e)
		if err != nil {
			return nil, fmt.Errorf("addresses[%d]: %w", i, err)
		}
		out = append(out, r)
	}
	if i, j, found := firstOverlap(out); found {
		return nil, fmt.Errorf("addresses[%d]: %q overlaps addresses[%d] %q: list every address once", j, entries[j], i, entries[i])
	}
	return out, nil
}

// ParseRange parses one entry: a CIDR, first-last, or a single address. Spaces are allowed around the dash only.
func ParseRange(entry string) (Range, error) {
	r, err := parseRange(entry)
	if err != nil {
		return Range{}, fmt.Errorf("%q %w", entry, err)
	}
	return r, nil
}

func parseRange(entry string) (Range, error) {
	if strings.Contains(entry, "/") {
		return parseCIDR(entry)
	}
	first, last, isRange := strings.Cut(entry, "-")
	if isRange {
		first, last = strings.TrimRight(first, " "), strings.TrimLeft(last, " ")
	} else {
		last = first
	}
	a, err := parseAddr(first)
	if err != nil {
		return Range{}, err
	}
	b, err := parseAddr(last)
	if err != nil {
		return Range{}, err
	}
	switch {
	case a.BitLen() != b.BitLen():
		return Range{}, fmt.Errorf("ranges from %s to %s: both ends must be of one family", FamilyOf(a), FamilyOf(b))
	case b.Less(a):
		return Range{}, fmt.Errorf("ends before it begins: write %s-%s", b, a)
	}
	r := Range{a, b}
	return r, special(r)
}

func parseCIDR(entry string) (Range, error) {
	p, err := netip.ParsePrefix(entry)
	if err != nil {
		return Range{}, fmt.Errorf("is not a CIDR: write it like 192.0.2.0/28 or 2001:db8::/64")
	}
	if p.Addr().Is4In6() {
		return Range{}, errMapped(p.Addr())
	}
	if p.Bits() == 0 {
		return Range{}, fmt.Errorf("is every address there is: list only those that are yours")
	}
	if p.Masked() != p {
		return Range{}, fmt.Errorf("has host bits set: write %s", p.Masked())
	}
	r := Range{p.Addr(), LastOf(p)}
	return r, special(r)
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("is not an address, first-last range or CIDR: write it like 192.0.2.10, 192.0.2.10-192.0.2.20 or 192.0.2.0/28")
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("has a zone: write %s", a.WithZone(""))
	case a.Is4In6():
		return netip.Addr{}, errMapped(a)
	}
	return a, nil
}

func errMapped(a netip.Addr) error {
	return fmt.Errorf("is an IPv4-mapped IPv6 address: write %s", a.Unmap())
}

// reserved lists the ranges in which no Service is reachable (RFC 6890, RFC 5771, RFC 4291).
var reserved = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

func special(r Range) error {
	for _, s := range reserved {
		if r.Overlaps(Range{s.prefix.Addr(), LastOf(s.prefix)}) {
			return fmt.Errorf("has %s addresses (%s), which no Service can have: remove them", s.what, s.prefix)
		}
	}
	return nil
}

// firstOverlap returns the first entry j that shares an address with an earlier entry i.
func firstOverlap(ranges []Range) (i, j int, found bool) {
	order := make([]int, len(ranges))
	for k := range order {
		order[k] = k
	}
	slices.SortFunc(order, func(x, y int) int {
		return cmp.Or(ranges[x].First.Compare(ranges[y].First), cmp.Compare(x, y))
	})
	reach := -1 // the entry so far with the highest end
	for _, k := range order {
		if reach >= 0 && ranges[reach].Overlaps(ranges[k]) {
			x, y := min(reach, k), max(reach, k)
			if !found || y < j || y == j && x < i {
				i, j, found = x, y, true
			}
		}
		if reach < 0 || ranges[k].Family() != ranges[reach].Family() || ranges[reach].Last.Less(ranges[k].Last) {
			reach = k
		}
	}
	return i, j, found
}
