package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// State of a session (RFC 5880, 4.1).
type State uint8

// The states, with their numbers on the wire.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

// View returns the state as a value of the View.
func (s State) View() view.BFDState {
	return [...]view.BFDState{view.BFDAdminDown, view.BFDDown, view.BFDInit, view.BFDUp}[s&3]
}

func (s State) String() string { return string(s.View()) }

// Diagnostic is the reason for a session's last change of state (RFC 5880, 4.1).
type Diagnostic uint8

// The diagnostics that this side sends.
const (
	NoDiagnostic       Diagnostic = 0
	TimeExpired        Diagnostic = 1
	NeighborDown       Diagnostic = 3
	AdministrativeDown Diagnostic = 7
)

var diagnostics = [...]string{"no diagnostic", "control detection time expired", "echo function failed", "neighbor signaled session down",
	"forwarding plane reset", "path down", "concatenated path down", "administratively down", "reverse concatenated path down"}

func (d Diagnostic) String() string {
	if int(d) < len(diagnostics) {
		return diagnostics[d]
	}
	return fmt.Sprintf("diagnostic %d", uint8(d))
}

// Packet is a BFD control packet without authentication (RFC 5880, 4.1).
type Packet struct {
	Diagnostic Diagnostic
	State      State
	Poll       bool
	Final      bool
	// Independent is the C bit: BFD does not share the fate of the control plane.
	Independent bool
	// Authenticated, Demand and Multipoint are the A, D and M bits.
	Authenticated, Demand, Multipoint bool
	Multiplier                        uint8
	My, Your                          uint32
	// DesiredTx, RequiredRx and RequiredEchoRx are full microseconds.
	DesiredTx, RequiredRx, RequiredEchoRx time.Duration
}

// PacketLen is the length of a packet without authentication.
const PacketLen = 24

const (
	version       = 1
	bitPoll       = 0x20
	bitFinal      = 0x10
	bitC          = 0x08
	bitAuth       = 0x04
	bitDemand     = 0x02
	bitMultipoint = 0x01
)

// Errors of Parse.
var (
	errShort   = errors.New("shorter than its length field or than a packet")
	errVersion = errors.New("not of version 1")
)

// maxInterval is the longest interval that a field can hold.
const maxInterval = (1<<32 - 1) * time.Microsecond

// Append appends the packet to b.
func (p *Packet) Append(b []byte) []byte {
	flags := byte(p.State) << 6
	for _, f := range [...]struct {
		on  bool
		bit byte
	}{{p.Poll, bitPoll}, {p.Final, bitFinal}, {p.Independent, bitC}, {p.Authenticated, bitAuth}, {p.Demand, bitDemand}, {p.Multipoint, bitMultipoint}} {
		if f.on {
			flags |= f.bit
		}
	}
	b = append(b, version<<5|byte(p.Diagnostic)&0x1f, flags, p.Multiplier, PacketLen)
	b = binary.BigEndian.AppendUint32(b, p.My)
	b = binary.BigEndian.AppendUint32(b, p.Your)
	for _, d := range [...]time.Duration{p.DesiredTx, p.RequiredRx, p.RequiredEchoRx} {
		b = binary.BigEndian.AppendUint32(b, uint32(min(d, maxInterval)/time.Microsecond))
	}
	return b
}

// Parse parses a packet. It ignores data beyond the length field, and the authentication section.
func Parse(b []byte) (p Packet, err error) {
	if len(b) < 4 {
		return p, errShort
	}
	if b[0]>>5 != version {
		return p, errVersion
	}
	need := PacketLen
	if b[1]&bitAuth != 0 {
		need += 2
	}
	if length := int(b[3]); length < need || length > len(b) {
		return p, errShort
	}
	interval := func(at int) time.Duration { return time.Duration(binary.BigEndian.Uint32(b[at:])) * time.Microsecond }
	return Packet{
		Diagnostic: Diagnostic(b[0] & 0x1f), State: State(b[1] >> 6),
		Poll: b[1]&bitPoll != 0, Final: b[1]&bitFinal != 0, Independent: b[1]&bitC != 0,
		Authenticated: b[1]&bitAuth != 0, Demand: b[1]&bitDemand != 0, Multipoint: b[1]&bitMultipoint != 0,
		Multiplier: b[2], My: binary.BigEndian.Uint32(b[4:]), Your: binary.BigEndian.Uint32(b[8:]),
		DesiredTx: interval(12), RequiredRx: interval(16), RequiredEchoRx: interval(20),
	}, nil
}
