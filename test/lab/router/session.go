package router

import (
	"net/netip"
	"time"
)

// Session is one with a neighbour, as the router sees it.
type Session struct {
	Address     netip.Addr
	Established bool
	// State in the router's own words.
	State string
	// Since when it is in that state.
	Since time.Time
	// Count is how often it was established. BIRD does not tell.
	Count int
	// ASN and ID are the neighbour's, once known.
	ASN uint32
	ID  netip.Addr
	// Hold time that was agreed on.
	Hold time.Duration
	// RestartTime is how long the neighbour asks for a graceful restart (RFC 4724), 0 if it does not.
	RestartTime time.Duration
	// Updates is how many UPDATE messages (FRR) or routes in them (BIRD) came from the neighbour.
	Updates int
	// Text is all that the router tells of it.
	Text string
}

// Same tells whether both are one session and not one after the other. BIRD's times are exact but for the drift between two clocks,
// FRR's are whole seconds.
func (s Session) Same(other Session) bool {
	if s.Count > 0 || other.Count > 0 {
		return s.Count == other.Count
	}
	return s.Since.Sub(other.Since).Abs() < 100*time.Millisecond
}

// Path is what one neighbour told of a prefix.
type Path struct {
	// From is the neighbour's address, NextHop what it announced.
	From, NextHop netip.Addr
	ASPath        string
	LocalPref     uint32
	// Communities ("65000:1", "65000:1:2"), ascending by their text.
	Communities, LargeCommunities []string
	Best                          bool
	// Stale is one that the router keeps while the neighbour restarts (RFC 4724, 4.2).
	Stale bool
	// Text is all that the router tells of it.
	Text string
}

// BFDSession is one with a neighbour, as the router sees it.
type BFDSession struct {
	State     string // Up, Init, Down, AdminDown
	Interface string
	// Since when, as far as the router tells.
	Since time.Time
	// Interval at which it sends, Detect after which it takes the neighbour for dead.
	Interval, Detect time.Duration
	// Downs is how often it has gone down; BIRD does not tell.
	Downs int
	// Text is all that the router tells of it.
	Text string
}
