package forwarding

import (
	"net/netip"
	"slices"
	"strings"
)

// AddrSet is a set of addresses, comparable with ==. The zero value is empty.
type AddrSet struct{ text string }

// NewAddrSet returns the set of these addresses.
func NewAddrSet(addrs ...netip.Addr) AddrSet {
	sorted := slices.Compact(slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare))
	texts := make([]string, len(sorted))
	for i, a := range sorted {
		texts[i] = a.String()
	}
	return AddrSet{strings.Join(texts, " ")}
}

// Addrs returns the addresses, sorted.
func (s AddrSet) Addrs() []netip.Addr {
	var addrs []netip.Addr
	for text := range strings.FieldsSeq(s.text) {
		addrs = append(addrs, netip.MustParseAddr(text)) // as NewAddrSet wrote it
	}
	return addrs
}

func (s AddrSet) String() string { return s.text }
