// Package connections keeps many TCP connections from one machine, and counts those that a fault breaks. On each, both
// ends send numbered lines. Everything that it reports comes from its own clock, sockets and capture.
package connections

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// Life of a connection, as its client observed it.
type Life struct {
	N      int            `json:"n"` // from 1, in the order opened
	Kept   bool           `json:"kept,omitempty"`
	Target netip.AddrPort `json:"target"`
	Port   uint16         `json:"port"` // of the client

	Opened    time.Time `json:"opened"`
	Connected time.Time `json:"connected,omitzero"`
	First     time.Time `json:"first,omitzero"` // answer
	Last      time.Time `json:"last,omitzero"`  // answer
	Sent      int       `json:"sent"`           // lines
	Answered  int       `json:"answered"`       // lines
	Pod       string    `json:"pod,omitempty"`
	Client    string    `json:"client,omitempty"` // its address as the Pod saw it
	Ended     time.Time `json:"ended,omitzero"`   // zero: open
	Cause     Cause     `json:"cause,omitempty"`
	Detail    string    `json:"detail,omitempty"` // of the cause

	Wire Wire `json:"wire,omitzero"`
}

// Wire is what the capture recorded of a connection.
type Wire struct {
	SYN    time.Time `json:"syn,omitzero"` // the first one sent
	SYNs   int       `json:"syns,omitempty"`
	SYNACK time.Time `json:"synack,omitzero"`
	// Reset is the first RST received, From the stations that sent data, one after the other, and ResetBy the one that
	// sent the RST.
	Reset   time.Time `json:"reset,omitzero"`
	ResetBy string    `json:"resetBy,omitempty"`
	From    []string  `json:"from,omitempty"`
}

// Cause is why a connection broke.
type Cause string

const (
	Unbroken    Cause = ""             // open, or closed by its client as intended
	Reset       Cause = "reset"        // by a RST
	Timeout     Cause = "timeout"      // no answer, or no connection, within the bound
	Closed      Cause = "closed"       // by the Pod: it has ended
	WrongBytes  Cause = "wrong bytes"  // an answer to another line, or none of a Pod
	OtherPod    Cause = "other Pod"    // an answer of another Pod than before
	OtherClient Cause = "other client" // the Pod sees another address of the client than before
	Refused     Cause = "refused"
	Unreachable Cause = "unreachable" // by an ICMP error
	Failed      Cause = "failed"      // by another error
)

// causeOf returns the cause of an error of a socket.
func causeOf(err error) Cause {
	var timeout net.Error
	switch {
	case err == nil:
		return Unbroken
	case errors.Is(err, io.EOF):
		return Closed
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return Reset
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return Unreachable
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	default:
		return Failed
	}
}
