package router

import (
	"net/netip"
	"time"
)

// Session is a session with a neighbor, as reported by the router.
type Session struct {
	Address     netip.Addr
	Established bool
	// State as the router names it.
	State string
	// Since is the time of the last change of State.
	Since time.Time
	// Count is the number of times it was established. BIRD does not report it.
	Count int
	// ASN and ID are the neighbor's, once known.
	ASN uint32
	ID  netip.Addr
	// Hold is the negotiated hold time.
	Hold time.Duration
	// RestartTime is the neighbor's restart time of graceful restart (RFC 4724), 0 without it.
	RestartTime time.Duration
	// Updates is the number of UPDATE messages (FRR) or of routes in them (BIRD) received from the neighbor.
	Updates int
	// Text is the router's full output about it.
	Text string
}

// Same reports whether both are the same session and not successive ones. BIRD's times are exact except for the
// difference of two clocks, FRR's are rounded to seconds.
func (s Session) Same(other Session) bool {
	if s.Count > 0 || other.Count > 0 {
		return s.Count == other.Count
	}
	return s.Since.Sub(other.Since).Abs() < 100*time.Millisecond
}

// Path is a prefix's path, as advertised by one neighbor.
type Path struct {
	// From is the neighbor's address, NextHop the advertised next hop.
	From, NextHop netip.Addr
	ASPath        string
	LocalPref     uint32
	// Communities ("65000:1", "65000:1:2"), ascending by their text.
	Communities, LargeCommunities []string
	Best                          bool
	// Stale is set while the router retains the path for a restarting neighbor (RFC 4724, 4.2).
	Stale bool
	// Text is the router's full output about it.
	Text string
}

// BFDSession is a BFD session with a neighbor, as reported by the router.
type BFDSession struct {
	State     string // Up, Init, Down, AdminDown
	Interface string
	// Since is the time of the last change of State, if the router reports it.
	Since time.Time
	// Interval is the transmit interval, Detect the detection time.
	Interval, Detect time.Duration
	// Downs counts changes to Down; BIRD does not report it.
	Downs int
	// Text is the router's full output about it.
	Text string
}
