package plan

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/pools"
)

// BGPPeer is a BGPPeer with its defaults, its BFDProfile and the password out of its Secret.
type BGPPeer struct {
	// Created orders those that cannot be on one node: the oldest is, then the first by name. A new one takes no session from another.
	Created int64
	// Address may have a zone, for a link-local one.
	Address netip.Addr
	Port    uint16
	// MyASN and LocalASN, PeerASN and Dynamic are as in Peer: exactly one of the latter two is set.
	MyASN, LocalASN uint32
	PeerASN         uint32
	Dynamic         DynamicASN
	// Source is the address from which to connect, RouterID the one to give; the zero Addr where the object names none.
	Source, RouterID netip.Addr
	// HoldTime, KeepaliveTime and ConnectTime, 0 where the object names none.
	HoldTime, KeepaliveTime, ConnectTime time.Duration
	// DualStack is set if both families are spoken, not only that of Address.
	DualStack bool
	// MultiHop is of external peers only; with TTLSecurity it is not set.
	MultiHop, TTLSecurity bool
	// RestartTime is set with GracefulRestart.
	GracefulRestart bool
	RestartTime     time.Duration
	// MaxReceivedPrefixes of each family; the object has a default.
	MaxReceivedPrefixes uint32
	// Nodes that have a session: any of the selectors matches; empty for all.
	Nodes []pools.Selector
	// Password is empty without.
	Password Secret
	// BFD is the zero value without. Its MinimumTTL is 0 for a single hop.
	BFD BFD
	// Wrong is set if there can be no session on any node, and Message says why with the mend: PasswordMissing, or NotConfigured as for
	// a BFDProfile that does not exist; or, with PasswordUnknown, not yet: until then the peer keeps what is its own from others.
	Wrong   Reason
	Message string
}

// LogValue implements slog.LogValuer, without the password.
func (p BGPPeer) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf("%+v", p)) }

// On tells whether a node with these labels has a session.
func (p BGPPeer) On(node map[string]string) bool {
	return len(p.Nodes) == 0 || anyMatches(p.Nodes, node)
}

// BGPAdvertisement says which addresses are announced by BGP, by which nodes, to which peers, and as what.
type BGPAdvertisement struct {
	// Advertisement has the pools, Services and nodes; its Interfaces are empty.
	Advertisement
	// Peers that are told, by name; empty for all.
	Peers []string
	// Length4 and Length6 of the prefixes that are announced: 1 to 32, 1 to 128.
	Length4, Length6 int
	// Attributes have the communities, those named by a Community too.
	Attributes Attributes
	// Missing are the names that no Community has, sorted. As long as there are any the advertisement announces nothing: a route without
	// the community that should keep it from going somewhere would be worse than none.
	Missing []string
}

// Prefix returns what is announced for an address.
func (a BGPAdvertisement) Prefix(addr netip.Addr) netip.Prefix {
	length := a.Length6
	if addr.Is4() {
		length = a.Length4
	}
	prefix, _ := addr.Prefix(length) // the schema and the conversion keep the length in range
	return prefix
}
