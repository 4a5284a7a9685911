package view

import (
	"fmt"
	"log/slog"
	"net/netip"
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
