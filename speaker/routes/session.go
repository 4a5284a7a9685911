package routes

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

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
