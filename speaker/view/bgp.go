package view

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/pools"
)

// BGPPeer is a BGPPeer object with its defaults, its BFDProfile and the password from its Secret.
type BGPPeer struct {
	// Created orders peers that exclude each other on a node: the oldest wins, then the first by name. So a new peer
	// takes no session from another.
	Created int64
	// Address of a link-local peer has a zone.
	Address netip.Addr
	Port    uint16
	// MyASN, LocalASN, PeerASN and Dynamic are as in Peer: exactly one of PeerASN and Dynamic is set.
	MyASN, LocalASN uint32
	PeerASN         uint32
	Dynamic         DynamicASN
	// Source is the local address, RouterID the router ID; the zero Addr if the object has none.
	Source, RouterID netip.Addr
	// HoldTime, KeepaliveTime and ConnectTime, 0 if the object has none.
	HoldTime, KeepaliveTime, ConnectTime time.Duration
	// DualStack is set if both families are negotiated, not only that of Address.
	DualStack bool
	// MultiHop is for external peers only and excludes TTLSecurity.
	MultiHop, TTLSecurity bool
	// RestartTime is set with GracefulRestart.
	GracefulRestart bool
	RestartTime     time.Duration
	// MaxReceivedPrefixes is the limit per family; the object has a default.
	MaxReceivedPrefixes uint32
	// Nodes that have a session: any of the selectors matches; empty for all.
	Nodes []pools.Selector
	// Password is empty for none.
	Password Secret
	// BFD is the zero value for none. Its MinimumTTL is 0 for a single hop.
	BFD BFD
	// Wrong is set if no node can have a session, and Message gives the cause and the remediation: PasswordMissing, or
	// NotConfigured, for example for a BFDProfile that does not exist.
	Wrong   Reason
	Message string
}

// LogValue implements slog.LogValuer, without the password.
func (p BGPPeer) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf("%+v", p)) }

// On reports whether a node with these labels has a session.
func (p BGPPeer) On(node map[string]string) bool {
	return len(p.Nodes) == 0 || anyMatches(p.Nodes, node)
}

// BGPAdvertisement selects addresses to announce by BGP, their nodes and peers, and the attributes.
type BGPAdvertisement struct {
	// Advertisement has the pools, Services and nodes; its Interfaces are empty.
	Advertisement
	// Peers that receive it, by name; empty for all.
	Peers []string
	// Length4 and Length6 of the announced prefixes: 1 to 32, 1 to 128.
	Length4, Length6 int
	// Attributes include the communities of Community objects.
	Attributes Attributes
	// Missing are the names without a Community object, sorted. While there are any, the advertisement announces
	// nothing: a route without the community that limits its propagation would be worse than none.
	Missing []string
}

// Prefix returns the prefix to announce for an address.
func (a BGPAdvertisement) Prefix(addr netip.Addr) netip.Prefix {
	length := a.Length6
	if addr.Is4() {
		length = a.Length4
	}
	prefix, _ := addr.Prefix(length) // the schema and the conversion keep the length in range
	return prefix
}

// Secret is text that must not be shown. It prints as asterisks.
type Secret string

func (s Secret) String() string { return s.hidden() }

func (s Secret) GoString() string { return s.hidden() }

// LogValue implements slog.LogValuer: a JSON handler does not use String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.hidden()) }

func (s Secret) hidden() string {
	if s == "" {
		return ""
	}
	return "***"
}

// DynamicASN is the kind of AS that a peer without a PeerASN may have.
type DynamicASN uint8

// The kinds of dynamic AS.
const (
	NotDynamic DynamicASN = iota
	AnyInternal
	AnyExternal
)

// BFD are the timers of a session (RFC 5880, 6.8.1). The zero value is no BFD.
type BFD struct {
	Receive, Transmit time.Duration
	Multiplier        uint8
	// Passive waits for the first packet of the peer.
	Passive bool
	// MinimumTTL of packets of a multihop session (RFC 5883); a single hop requires 255 (RFC 5881, 5).
	MinimumTTL uint8
}

// On reports whether BFD is configured.
func (b BFD) On() bool { return b.Multiplier > 0 }

// bfdBegins allows for the slow packets of the peer while a session is down, one per second (RFC 5880, 6.8.3), and for
// routers that start BFD only when BGP is established.
const bfdBegins = 5 * time.Second

// Patience is how long a session may take to come up before a warning: three local detection times and a few seconds.
func (b BFD) Patience() time.Duration {
	return bfdBegins + 3*time.Duration(b.Multiplier)*max(b.Receive, b.Transmit)
}

// BFDState is a state of RFC 5880, 6.2.
type BFDState string

// The BFD states.
const (
	BFDAdminDown BFDState = "AdminDown"
	BFDDown      BFDState = "Down"
	BFDInit      BFDState = "Init"
	BFDUp        BFDState = "Up"
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

// MarshalJSON writes the communities as numbers, ascending.
func (s CommunitySet) MarshalJSON() ([]byte, error) { return json.Marshal(s.Communities()) }

// UnmarshalJSON reads the output of MarshalJSON, in any order.
func (s *CommunitySet) UnmarshalJSON(text []byte) error {
	var all []uint32
	err := json.Unmarshal(text, &all)
	*s = NewCommunitySet(all...)
	return err
}

// MarshalJSON writes the large communities as objects, ascending.
func (s LargeCommunitySet) MarshalJSON() ([]byte, error) { return json.Marshal(s.LargeCommunities()) }

// UnmarshalJSON reads the output of MarshalJSON, in any order.
func (s *LargeCommunitySet) UnmarshalJSON(text []byte) error {
	var all []LargeCommunity
	err := json.Unmarshal(text, &all)
	*s = NewLargeCommunitySet(all...)
	return err
}
