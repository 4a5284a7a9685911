package view

import (
	"encoding/binary"
	"slices"
	"strings"
)

// Attributes of a path, comparable with ==.
type Attributes struct {
	// LocalPref is sent to internal peers (RFC 4271, 5.1.5), 0 for none.
	LocalPref uint32 `json:",omitzero"`
	// Communities and LargeCommunities are sets.
	Communities      CommunitySet      `json:",omitzero"`
	LargeCommunities LargeCommunitySet `json:",omitzero"`
}

// Unite adds the communities of b.
func (a *Attributes) Unite(b Attributes) {
	switch {
	case a.Communities == CommunitySet{}:
		a.Communities = b.Communities
	case b.Communities != CommunitySet{}:
		a.Communities = NewCommunitySet(append(a.Communities.Communities(), b.Communities.Communities()...)...)
	}
	switch {
	case a.LargeCommunities == LargeCommunitySet{}:
		a.LargeCommunities = b.LargeCommunities
	case b.LargeCommunities != LargeCommunitySet{}:
		a.LargeCommunities = NewLargeCommunitySet(append(a.LargeCommunities.LargeCommunities(), b.LargeCommunities.LargeCommunities()...)...)
	}
}

// CommunitySet is a set of communities (RFC 1997), comparable with ==: four octets each, ascending. The zero value is
// empty.
type CommunitySet struct{ octets string }

// NewCommunitySet returns the set of these communities.
func NewCommunitySet(communities ...uint32) CommunitySet {
	sorted := slices.Compact(slices.Sorted(slices.Values(communities)))
	b := make([]byte, 0, 4*len(sorted))
	for _, c := range sorted {
		b = binary.BigEndian.AppendUint32(b, c)
	}
	return CommunitySet{string(b)}
}

// Communities returns the communities, ascending.
func (s CommunitySet) Communities() []uint32 {
	var out []uint32
	for o := []byte(s.octets); len(o) >= 4; o = o[4:] {
		out = append(out, binary.BigEndian.Uint32(o))
	}
	return out
}

// LargeCommunity is a large community (RFC 8092).
type LargeCommunity struct{ Global, Local1, Local2 uint32 }

// LargeCommunitySet is a set of large communities, comparable with ==: twelve octets each, ascending. The zero value is
// empty.
type LargeCommunitySet struct{ octets string }

// NewLargeCommunitySet returns the set of these large communities.
func NewLargeCommunitySet(communities ...LargeCommunity) LargeCommunitySet {
	all := make([]string, 0, len(communities))
	for _, c := range communities {
		b := binary.BigEndian.AppendUint32(nil, c.Global)
		b = binary.BigEndian.AppendUint32(b, c.Local1)
		all = append(all, string(binary.BigEndian.AppendUint32(b, c.Local2)))
	}
	slices.Sort(all)
	return LargeCommunitySet{strings.Join(slices.Compact(all), "")}
}

// LargeCommunities returns the large communities, ascending.
func (s LargeCommunitySet) LargeCommunities() []LargeCommunity {
	var out []LargeCommunity
	for o := []byte(s.octets); len(o) >= 12; o = o[12:] {
		out = append(out, LargeCommunity{binary.BigEndian.Uint32(o), binary.BigEndian.Uint32(o[4:]), binary.BigEndian.Uint32(o[8:])})
	}
	return out
}
