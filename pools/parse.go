package pools

import (
	"fmt"
	"net/netip"
	"strings"
)

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
