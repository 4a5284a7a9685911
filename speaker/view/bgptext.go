package view

import (
	"fmt"
	"strconv"
	"strings"
)

// MarshalText writes communities in the usual notation, such as "65000:100 65535:0".
func (s CommunitySet) MarshalText() ([]byte, error) {
	var b []byte
	for i, c := range s.Communities() {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendUint(b, uint64(c>>16), 10)
		b = append(b, ':')
		b = strconv.AppendUint(b, uint64(c&0xffff), 10)
	}
	return b, nil
}

// UnmarshalText parses the output of MarshalText, in any order.
func (s *CommunitySet) UnmarshalText(text []byte) error {
	var all []uint32
	for field := range strings.FieldsSeq(string(text)) {
		n, err := numbers(field, 2, 16)
		if err != nil {
			return fmt.Errorf("community %q: %w", field, err)
		}
		all = append(all, n[0]<<16|n[1])
	}
	*s = NewCommunitySet(all...)
	return nil
}

// MarshalText writes large communities as in RFC 8092, 4.1: "65000:1:2 65000:1:3".
func (s LargeCommunitySet) MarshalText() ([]byte, error) {
	var b []byte
	for i, c := range s.LargeCommunities() {
		if i > 0 {
			b = append(b, ' ')
		}
		b = fmt.Appendf(b, "%d:%d:%d", c.Global, c.Local1, c.Local2)
	}
	return b, nil
}

// UnmarshalText parses the output of MarshalText, in any order.
func (s *LargeCommunitySet) UnmarshalText(text []byte) error {
	var all []LargeCommunity
	for field := range strings.FieldsSeq(string(text)) {
		n, err := numbers(field, 3, 32)
		if err != nil {
			return fmt.Errorf("large community %q: %w", field, err)
		}
		all = append(all, LargeCommunity{n[0], n[1], n[2]})
	}
	*s = NewLargeCommunitySet(all...)
	return nil
}

// numbers parses count decimal numbers separated by colons.
func numbers(text string, count, bits int) ([]uint32, error) {
	parts := strings.Split(text, ":")
	if len(parts) != count {
		return nil, fmt.Errorf("it has %d numbers, want %d with colons between", len(parts), count)
	}
	out := make([]uint32, count)
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, bits)
		if err != nil {
			return nil, err
		}
		out[i] = uint32(n)
	}
	return out, nil
}
