package view

import "time"

// BFD are the timers of a session (RFC 5880, 6.8.1). The zero value is no BFD.
type BFD struct {
	Receive, Transmit time.Duration
	Multiplier        uint8
	// Passive waits for the first packet of the peer.
	Passive bool
	// MinimumTTL of packets of a multihop session (RFC 5883); a single hop requires 255 (RFC 5881, 5).
	MinimumTTL uint8
}

// On reports whether BFD is configured.
func (b BFD) On() bool { return b.Multiplier > 0 }

// bfdBegins allows for the slow packets of the peer while a session is down, one per second (RFC 5880, 6.8.3), and for
// routers that start BFD only when BGP is established.
const bfdBegins = 5 * time.Second

// Patience is how long a session may take to come up before a warning: three local detection times and a few seconds.
func (b BFD) Patience() time.Duration {
	return bfdBegins + 3*time.Duration(b.Multiplier)*max(b.Receive, b.Transmit)
}

// BFDState is a state of RFC 5880, 6.2.
type BFDState string

// The BFD states.
const (
	BFDAdminDown BFDState = "AdminDown"
	BFDDown      BFDState = "Down"
	BFDInit      BFDState = "Init"
	BFDUp        BFDState = "Up"
)
