package plan

import (
	"fmt"
	"log/slog"
	"net/netip"
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
	// PasswordUnknown: the API server has not returned the password yet, and no copy exists.
	PasswordUnknown view.Reason = "PasswordUnknown"
	// NotConfigured: this node cannot do what the BGPPeer requests; the message explains it.
	NotConfigured view.Reason = "NotConfigured"
	// NoBGPProcess: ironlb-bgpd is not running.
	NoBGPProcess view.Reason = "NoBGPProcess"
)

// BGPChange is a change of BGP, from the planner to the BGP daemon. Peers and Routes that are nil are deleted.
type BGPChange struct {
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

// Apply applies the change to b.
func (b *BGP) Apply(c BGPChange) {
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
