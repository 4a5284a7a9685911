package routes

import "github.com/ironlb/ironlb/speaker/view"

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
