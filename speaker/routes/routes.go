// Package routes plans the BGP sessions and routes of one node.
//
// The BGPPeers that select the node become sessions (peers.go); of several with one address the oldest wins. A pool
// address is announced while a BGPAdvertisement covers it and this node, the data plane serves it, and the node may
// take its traffic: with policy Local an endpoint is here. Each advertisement announces the
// address within a prefix. A prefix is announced while an address is behind it, to each peer that receives one of its
// advertisements, with their attributes united. A node that is being decommissioned first asks the routers
// for another route, and withdraws its own later.
//
// The Planner decides again only about the addresses and prefixes that a change affects, after the data plane is
// planned. Its Routing has the desired state of the BGP daemon and the outcome for each address. Change and Session are
// what the speaker and the BGP daemon exchange.
//
// It is pure: no I/O, no clock, no Kubernetes type.
package routes

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// BGP is the full desired state of the BGP daemon on this node: its peers and the routes that it announces to them.
type BGP struct {
	// RouterID of this node, an IPv4 address, for peers that request no other.
	RouterID netip.Addr
	// NodeDecommissioning is set while the node is being decommissioned: a BGP daemon that ends then is not expected to
	// return.
	NodeDecommissioning bool
	// Peers by the name of their BGPPeer.
	Peers map[string]Peer
	// Routes by prefix.
	Routes map[netip.Prefix]Route
	// Serial of the last change; 0 if it had none.
	Serial uint64
}

// RouterIDOf returns the router ID for a peer.
func (b *BGP) RouterIDOf(peer string) netip.Addr {
	if id := b.Peers[peer].RouterID; id.IsValid() {
		return id
	}
	return b.RouterID
}

// Apply applies the change to b.
func (b *BGP) Apply(c Change) {
	if c.Full || b.Peers == nil {
		b.Peers, b.Routes = map[string]Peer{}, map[netip.Prefix]Route{}
	}
	b.RouterID, b.NodeDecommissioning = c.RouterID, c.NodeDecommissioning
	if c.Serial != 0 {
		b.Serial = c.Serial
	}
	for name, p := range c.Peers {
		if p == nil {
			delete(b.Peers, name)
		} else {
			b.Peers[name] = *p
		}
	}
	for prefix, r := range c.Routes {
		incremental.Set(b.Routes, prefix, r, len(r) > 0)
	}
}

// Change is a change of BGP, from the planner to the BGP daemon. Peers and Routes that are nil are deleted.
type Change struct {
	// Full is set if the change is a full state: anything missing is deleted.
	Full bool
	// RouterID and NodeDecommissioning are always set.
	RouterID            netip.Addr
	NodeDecommissioning bool `json:",omitempty"`
	Peers               map[string]*Peer
	Routes              map[netip.Prefix]Route
	// Serial increases with each change of a writer that waits for its changes to be applied.
	Serial uint64 `json:",omitempty"`
}

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

const (
	// gracefulShutdown is GRACEFUL_SHUTDOWN (RFC 8326, 6), lastPref the localPref with it. RFC 8326, 4.1 recommends 0,
	// but GoBGP's policies cannot set that (internal/pkg/table/policy.go, NewLocalPrefAction).
	gracefulShutdown = 65535 << 16
	lastPref         = 1
	// defaultPref is the localPref for internal peers if an advertisement has none.
	defaultPref = 100
)

// pref returns the localPref for internal peers.
func pref(a view.Attributes) uint32 { return cmp.Or(a.LocalPref, defaultPref) }

// lastResort returns the attributes of a route that is about to be withdrawn, so that routers prefer another (RFC
// 8326).
func lastResort(a view.Attributes) view.Attributes {
	a.Unite(view.Attributes{Communities: view.NewCommunitySet(gracefulShutdown)})
	a.LocalPref = lastPref
	return a
}

// Session is the state of a BGP session of this node.
type Session struct {
	State SessionState
	// Since is when it entered that state, or began to try.
	Since time.Time
	// Reason and Message explain why it is not established or last went down; empty if it never did.
	Reason  view.Reason
	Message string
	// Prefixes is the number announced to the peer, or to be announced once the session is established.
	Prefixes int
	// PeerASN and PeerID are those of the peer, once known.
	PeerASN uint32
	PeerID  netip.Addr
	// BFD is the state of its BFD session, empty without. BFDMessage explains why it is not up, as far as known. The
	// speaker sets BFDReason to BFDNotUp once the BGP session is established for so long that BFD should be up; else it
	// is empty.
	BFD        view.BFDState
	BFDSince   time.Time
	BFDReason  view.Reason
	BFDMessage string
	// Changes is how often it has been established, which distinguishes two successive sessions.
	Changes uint64
}

// SessionState is a state of RFC 4271, 8.2.2.
type SessionState string

// The session states.
const (
	SessionIdle        SessionState = "Idle"
	SessionConnect     SessionState = "Connect"
	SessionActive      SessionState = "Active"
	SessionOpenSent    SessionState = "OpenSent"
	SessionOpenConfirm SessionState = "OpenConfirm"
	SessionEstablished SessionState = "Established"
)

// Routing is the sessions and routes of a node, and the outcome for each address.
type Routing struct {
	// BGP is the desired state of the BGP daemon. PeerProblems are the BGPPeers of this node that have no session, or
	// lack part of their configuration. LocalPrefs are the contradictions of advertisements, with the number of
	// prefixes.
	BGP          BGP
	PeerProblems map[string]PeerProblem
	LocalPrefs   map[LocalPrefs]int
	// Routed are the addresses that a BGPAdvertisement covers on this node, Under those of each aggregate.
	Routed map[netip.Addr]Routed
	Under  map[netip.Prefix]map[netip.Addr]struct{}
}

// NewRouting returns a Routing without sessions and routes.
func NewRouting() Routing {
	return Routing{
		BGP:          BGP{Peers: map[string]Peer{}, Routes: map[netip.Prefix]Route{}},
		PeerProblems: map[string]PeerProblem{},
		LocalPrefs:   map[LocalPrefs]int{},
		Routed:       map[netip.Addr]Routed{},
		Under:        map[netip.Prefix]map[netip.Addr]struct{}{},
	}
}

// ChangedRouting names the parts of Routing that may differ from the last plan.
type ChangedRouting struct {
	// Peers of BGP.Peers and PeerProblems; Routes of BGP.Routes, with the reason. Routed are the addresses of Routed.
	Peers  map[string]struct{}
	Routes map[netip.Prefix]view.Reason
	Routed map[netip.Addr]struct{}
	// RouterID, NodeDecommissioning and LocalPrefs are set if they differ.
	RouterID, NodeDecommissioning, LocalPrefs bool
}

func newChangedRouting() ChangedRouting {
	return ChangedRouting{Peers: map[string]struct{}{}, Routes: map[netip.Prefix]view.Reason{}, Routed: map[netip.Addr]struct{}{}}
}

// Routed is the outcome for an address that a BGPAdvertisement covers.
type Routed struct {
	// Reason is Announced, NoEndpoint or GracefulShutdown if it is announced, else why it is not.
	Reason view.Reason
	// Prefixes are the announced ones, sorted; none if it is not announced.
	Prefixes []netip.Prefix
}

// Failed reports whether this node could not program the address. Whether any node serves an address is evaluated by
// ironlb-ccm.
func (r Routed) Failed() bool {
	switch r.Reason {
	case view.Announced, view.GracefulShutdown, view.NoEndpoint, view.NoLocalEndpoint, view.NoPeer, view.Excluded, view.NoService, view.NoAdvertisement:
		return false
	}
	return true
}

func (r Routed) equal(s Routed) bool {
	return r.Reason == s.Reason && slices.Equal(r.Prefixes, s.Prefixes)
}

// LocalPrefs are two BGPAdvertisements of the same prefix to one internal peer with different values of localPref. The
// lower one counts.
type LocalPrefs struct{ Lower, Higher string }

// PeerProblem is why a BGPPeer that selects this node has no session here, or lacks part of its configuration.
type PeerProblem struct {
	Reason  view.Reason
	Message string
}

// Why a BGP session is not established.
const (
	// WrongASN: the AS of the peer differs from the BGPPeer, or the peer expects another AS of this node.
	WrongASN view.Reason = "WrongASN"
	// Unreachable: no connection is established: no route, or no answer in time.
	Unreachable view.Reason = "Unreachable"
	// Refused: the peer's host refuses the connection.
	Refused view.Reason = "Refused"
	// NoAnswer: the peer does not answer at all; a wrong password has the same effect (RFC 2385, 4.1).
	NoAnswer view.Reason = "NoAnswer"
	// Duplicate: another BGPPeer of this node has the same address.
	Duplicate view.Reason = "Duplicate"
	// Rejected: the peer sent a NOTIFICATION; the message contains its text.
	Rejected view.Reason = "Rejected"
	// HoldTimeExpired: no message was received from the peer for the hold time.
	HoldTimeExpired view.Reason = "HoldTimeExpired"
	// TooManyPrefixes: the peer announced more than MaxReceivedPrefixes; the session is retried after minutes.
	TooManyPrefixes view.Reason = "TooManyPrefixes"
	// OutOfMemory: the process of the peer reached its memory limit; it is restarted after minutes.
	OutOfMemory view.Reason = "OutOfMemory"
	// BFDWentDown: BFD found the path down.
	BFDWentDown view.Reason = "BFDDown"
	// BFDNotUp: the BGP session is established, but BFD is not although it had time to come up: the path is not
	// monitored. Either the router has no such BFD session, or packets do not arrive; the message contains the known
	// facts.
	BFDNotUp view.Reason = "BFDNotUp"
	// PasswordMissing: the Secret of the password does not exist or has another type.
	PasswordMissing view.Reason = "PasswordMissing"
	// NotConfigured: this node cannot do what the BGPPeer requests; the message explains it.
	NotConfigured view.Reason = "NotConfigured"
	// NoBGPProcess: ironlb-bgpd is not running.
	NoBGPProcess view.Reason = "NoBGPProcess"
)
