package routes

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// Peer is a BGP session of this node, comparable with ==.
type Peer struct {
	// Address may have a zone. Port is 179 if the BGPPeer has none.
	Address netip.Addr
	Port    uint16
	// MyASN is the local AS as the peer sees it. LocalASN, if not 0, replaces it.
	MyASN, LocalASN uint32
	// PeerASN is the AS that the peer must have. 0 with Dynamic: any AS that is (internal) or is not (external) MyASN.
	PeerASN uint32
	Dynamic view.DynamicASN
	// Source is the local address, the zero Addr if the kernel chooses. RouterID, if valid, replaces that of the node.
	Source, RouterID netip.Addr
	// NextHop4 and NextHop6 are the next hop in a family other than that of the session; invalid: that family is not
	// negotiated. For a peer with a zone a valid NextHop6 replaces the local end of the session.
	NextHop4, NextHop6 netip.Addr
	// HoldTime and KeepaliveTime, 0 for GoBGP's 90 s and a third of the hold time. ConnectTime is the time between two
	// attempts, 0 for a short default.
	HoldTime, KeepaliveTime, ConnectTime time.Duration
	// Password for TCP MD5 (RFC 2385), empty for none. It is a secret and never logged.
	Password view.Secret
	// MultiHop allows an external peer that is not on link. TTLSecurity accepts only packets with a TTL of 255 (RFC
	// 5082).
	MultiHop, TTLSecurity bool
	// GracefulRestart (RFC 4724) asks the peer to keep the routes over a restart, for RestartTime.
	GracefulRestart bool
	RestartTime     time.Duration
	// IPv4 and IPv6 are the negotiated families.
	IPv4, IPv6 bool
	// MaxReceivedPrefixes is the limit per family of prefixes from the peer, 0 for a default. More end the session.
	MaxReceivedPrefixes uint32 `json:",omitempty"`
	// BFD is the zero value without BFD.
	BFD view.BFD
}

// internal reports whether the peer is in the AS of this node: only such a peer receives LOCAL_PREF (RFC 4271, 5.1.5).
func (p Peer) internal() bool {
	return p.Dynamic == view.AnyInternal || p.Dynamic == view.NotDynamic && p.PeerASN == p.MyASN
}

// LogValue also hides the password within.
func (p Peer) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf("%+v", p)) }

// Route is the attributes of a prefix by the name of the peer that receives it.
type Route map[string]view.Attributes
