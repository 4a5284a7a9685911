package plan

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// BGP is what this node's BGP does: whom it speaks to, and what it tells them. It is whole.
type BGP struct {
	// RouterID of this node, an IPv4 address, for peers that ask for no other.
	RouterID netip.Addr
	// NodeGoes is set if the node is on its way out: who speaks and is ended then is not expected back.
	NodeGoes bool
	// Peers by the name of their BGPPeer.
	Peers map[string]Peer
	// Routes by prefix.
	Routes map[netip.Prefix]Route
	// Serial of the last change; 0 if it had none.
	Serial uint64
}

// RouterIDOf returns the router id that a peer is to see.
func (b *BGP) RouterIDOf(peer string) netip.Addr {
	if id := b.Peers[peer].RouterID; id.IsValid() {
		return id
	}
	return b.RouterID
}

// Peer is a BGP session of this node. == compares it.
type Peer struct {
	// Address may have a zone. Port is 179 if the BGPPeer names none.
	Address netip.Addr
	Port    uint16
	// MyASN is this side's AS as the peer sees it. LocalASN, if it is not 0, is shown in place of MyASN.
	MyASN, LocalASN uint32
	// PeerASN is the AS that the other side must have. 0 with Dynamic: any that is (internal) or is not (external) MyASN.
	PeerASN uint32
	Dynamic DynamicASN
	// Source is the address from which to connect, the zero Addr for what the kernel chooses. RouterID, if it is valid, is shown in place of
	// the node's.
	Source, RouterID netip.Addr
	// NextHop4 and NextHop6 are what is announced as next hop in a family that the session is not of; invalid: that family is not spoken. To a
	// peer with a zone NextHop6 is, if it is valid, in place of this end of the session.
	NextHop4, NextHop6 netip.Addr
	// HoldTime and KeepaliveTime, 0 for GoBGP's 90 s and a third of the hold time; ConnectTime between two tries, 0 for a short default.
	HoldTime, KeepaliveTime, ConnectTime time.Duration
	// Password for TCP MD5 (RFC 2385), empty for none. It is a secret: never logged.
	Password Secret
	// MultiHop allows an external peer that is not on link. TTLSecurity takes only packets with a TTL of 255 (RFC 5082).
	MultiHop, TTLSecurity bool
	// GracefulRestart (RFC 4724) asks the peer to keep the routes over a restart; RestartTime is for how long.
	GracefulRestart bool
	RestartTime     time.Duration
	// IPv4 and IPv6 are the families that are spoken.
	IPv4, IPv6 bool
	// MaxReceivedPrefixes of each family that the peer may announce to this node, 0 for a default: more end the
	// session.
	MaxReceivedPrefixes uint32 `json:",omitempty"`
	// BFD, the zero value without.
	BFD BFD
}

// internal tells whether it is a peer of this node's own AS: only such a one is told localPref (RFC 4271, 5.1.5).
func (p Peer) internal() bool {
	return p.Dynamic == AnyInternal || p.Dynamic == NotDynamic && p.PeerASN == p.MyASN
}

// Secret is text that must not be seen. It prints as dots.
type Secret string

func (s Secret) String() string   { return s.hidden() }
func (s Secret) GoString() string { return s.hidden() }

// LogValue implements slog.LogValuer: a handler that writes JSON does not print.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.hidden()) }

// LogValue hides the password also within.
func (p Peer) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf("%+v", p)) }

func (s Secret) hidden() string {
	if s == "" {
		return ""
	}
	return "***"
}

// DynamicASN says which AS a peer may have whose PeerASN is not given.
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
	// Passive waits for the other side's first packet.
	Passive bool
	// MinimumTTL of a multihop session's packets (RFC 5883); single hop wants 255 (RFC 5881, 5).
	MinimumTTL uint8
}

// On tells whether there is BFD.
func (b BFD) On() bool { return b.Multiplier > 0 }

// bfdBegins is for the other side's slow packets while a session is down, one in a second (RFC 5880, 6.8.3), and for routers that begin BFD only
// when BGP is established.
const bfdBegins = 5 * time.Second

// Patience is how long a session may take to come up before that is worth a word: three of this side's detection times and a few seconds.
func (b BFD) Patience() time.Duration {
	return bfdBegins + 3*time.Duration(b.Multiplier)*max(b.Receive, b.Transmit)
}

// Route is what is told of a prefix, by the name of the peer that is told it.
type Route map[string]Attributes

// Attributes of a path. == compares them.
type Attributes struct {
	// LocalPref is told to internal peers (RFC 4271, 5.1.5), 0 for none.
	LocalPref uint32 `json:",omitzero"`
	// Communities and LargeCommunities are sets.
	Communities      CommunitySet      `json:",omitzero"`
	LargeCommunities LargeCommunitySet `json:",omitzero"`
}

// CommunitySet is a set of communities (RFC 1997) that == compares: the four octets of each, ascending. The zero value is empty.
type CommunitySet struct{ octets string }

// NewCommunitySet returns the set of these.
func NewCommunitySet(communities ...uint32) CommunitySet {
	sorted := slices.Compact(slices.Sorted(slices.Values(communities)))
	b := make([]byte, 0, 4*len(sorted))
	for _, c := range sorted {
		b = binary.BigEndian.AppendUint32(b, c)
	}
	return CommunitySet{string(b)}
}

// Communities returns them, ascending.
func (s CommunitySet) Communities() []uint32 {
	var out []uint32
	for o := []byte(s.octets); len(o) >= 4; o = o[4:] {
		out = append(out, binary.BigEndian.Uint32(o))
	}
	return out
}

// LargeCommunity is one of RFC 8092.
type LargeCommunity struct{ Global, Local1, Local2 uint32 }

// LargeCommunitySet is a set of large communities that == compares: the twelve octets of each, ascending. The zero value is empty.
type LargeCommunitySet struct{ octets string }

// NewLargeCommunitySet returns the set of these.
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

// LargeCommunities returns them, ascending.
func (s LargeCommunitySet) LargeCommunities() []LargeCommunity {
	var out []LargeCommunity
	for o := []byte(s.octets); len(o) >= 12; o = o[12:] {
		out = append(out, LargeCommunity{binary.BigEndian.Uint32(o), binary.BigEndian.Uint32(o[4:]), binary.BigEndian.Uint32(o[8:])})
	}
	return out
}

// Session is how a BGP session of this node is.
type Session struct {
	State SessionState
	// Since when it is in that state, or tries to get into it.
	Since time.Time
	// Reason and Message say why it is not established, or went down last; empty if it never did.
	Reason  Reason
	Message string
	// Prefixes are how many are announced to the peer, or would be if the session were established.
	Prefixes int
	// PeerASN and PeerID are the other side's, once known.
	PeerASN uint32
	PeerID  netip.Addr
	// BFD is the state of its BFD session, empty without. BFDMessage says why it is not up, as far as that is known. The speaker sets BFDReason:
	// BFDNotUp, once the BGP session has been established for so long that BFD should be up, too; else it is empty.
	BFD        BFDState
	BFDSince   time.Time
	BFDReason  Reason
	BFDMessage string
	// Changes is how often it has been established, and by that tells two sessions apart.
	Changes uint64
}

// SessionState is one of RFC 4271, 8.2.2.
type SessionState string

// The states.
const (
	SessionIdle        SessionState = "Idle"
	SessionConnect     SessionState = "Connect"
	SessionActive      SessionState = "Active"
	SessionOpenSent    SessionState = "OpenSent"
	SessionOpenConfirm SessionState = "OpenConfirm"
	SessionEstablished SessionState = "Established"
)

// BFDState is one of RFC 5880, 6.2.
type BFDState string

// The states.
const (
	BFDAdminDown BFDState = "AdminDown"
	BFDDown      BFDState = "Down"
	BFDInit      BFDState = "Init"
	BFDUp        BFDState = "Up"
)

// Why a BGP session is not established.
const (
	// WrongASN: the peer has another AS than the BGPPeer says, or wants another of us.
	WrongASN Reason = "WrongASN"
	// Unreachable: no connection comes about: no route, no answer in time.
	Unreachable Reason = "Unreachable"
	// Refused: the peer's host refuses the connection.
	Refused Reason = "Refused"
	// NoAnswer: the peer does not answer at all; a wrong password looks like that (RFC 2385, 4.1).
	NoAnswer Reason = "NoAnswer"
	// Duplicate: another BGPPeer of this node has the same address.
	Duplicate Reason = "Duplicate"
	// Rejected: the peer sent a NOTIFICATION; the message has its words.
	Rejected Reason = "Rejected"
	// HoldTimeExpired: nothing came from the peer for the hold time.
	HoldTimeExpired Reason = "HoldTimeExpired"
	// TooManyPrefixes: the peer announced more than MaxReceivedPrefixes; the session is retried after minutes.
	TooManyPrefixes Reason = "TooManyPrefixes"
	// OutOfMemory: the process of the peer reached its memory limit; it is started again after minutes.
	OutOfMemory Reason = "OutOfMemory"
	// BFDWentDown: BFD found the path dead.
	BFDWentDown Reason = "BFDDown"
	// BFDNotUp: the BGP session is established without BFD, which has had the time to come up: nothing watches the path. Either the router
	// has no such BFD session, or packets do not arrive; the message says what is known.
	BFDNotUp Reason = "BFDNotUp"
	// PasswordMissing: the Secret of the password is not there, or not of its type.
	PasswordMissing Reason = "PasswordMissing"
	// PasswordUnknown: the API server has not said yet what the password is. That is nowhere else.
	PasswordUnknown Reason = "PasswordUnknown"
	// NotConfigured: what the BGPPeer asks for cannot be done on this node; the message says what.
	NotConfigured Reason = "NotConfigured"
	// NoBGPProcess: ironlb-bgpd is not running.
	NoBGPProcess Reason = "NoBGPProcess"
)

// BGPChange is what is new in a BGP; it travels from the planner to the process that speaks. Peers and Routes that are nil are gone.
type BGPChange struct {
	// Whole is set if what is not named is gone.
	Whole bool
	// RouterID and NodeGoes are always given.
	RouterID netip.Addr
	NodeGoes bool `json:",omitempty"`
	Peers    map[string]*Peer
	Routes   map[netip.Prefix]Route
	// Serial rises from one change to the next of a writer that wants to know when they are applied.
	Serial uint64 `json:",omitempty"`
}

// Apply brings b to what the change says.
func (b *BGP) Apply(c BGPChange) {
	if c.Whole || b.Peers == nil {
		b.Peers, b.Routes = map[string]Peer{}, map[netip.Prefix]Route{}
	}
	b.RouterID, b.NodeGoes = c.RouterID, c.NodeGoes
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
		set(b.Routes, prefix, r, len(r) > 0)
	}
}

// BGPReport is what is new of sessions. One that is nil is gone.
type BGPReport struct {
	// Whole is set if what is not named is gone.
	Whole    bool
	Sessions map[string]*Session
	// Applied is the Serial of a change that GoBGP has taken in with all before it; 0 for nothing new.
	Applied uint64 `json:",omitempty"`
}
