// Package bgp carries what is wanted of BGP from the speaker to ironlb-bgpd and from there to the process with GoBGP, and how
// the sessions are back again. docs/design/bgp.md says who talks to whom.
//
// A connection carries lines of JSON, a Message each. Each side begins with a Hello. The first change of a connection is whole, those
// after it name what changed, and so with reports. Who cannot follow closes the connection; the next one begins with everything.
package bgp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Versions of the language. The containers of a Pod may be replaced one by one, so two versions meet.
//
// Whoever adds a field that an older reader may pass over (it does less than it could, and nothing wrong) raises version alone. Whoever
// adds one that must not be passed over, such as a limit on who is told what, raises oldest to version: older readers then refuse, and
// say so. A reader takes what an older writer says as it is: what is missing has its zero value.
const (
	// version is what this code writes. Since 2 a change may have a Serial, which a report tells back, and NodeGoes, a
	// peer a RouterID, and a session a BFDMessage; since 3 a peer may have MaxReceivedPrefixes.
	version = 3
	oldest  = 1 // the oldest reader that may take it
)

// Limit is the longest line, in octets. A whole set of 10,000 routes to two peers is about 1 MB.
const Limit = 64 << 20

// Message is one line. Exactly one of its fields is set.
type Message struct {
	Hello  *Hello          `json:"hello,omitempty"`
	Change *plan.BGPChange `json:"change,omitempty"`
	Report *plan.BGPReport `json:"report,omitempty"`
	// Down takes a session down at once.
	Down *Down `json:"down,omitempty"`
	// Up says that the path to a peer is whole again.
	Up *Up `json:"up,omitempty"`
	// Leave asks for the polite end, after which the reader ends.
	Leave *Leave `json:"leave,omitempty"`
	// Health is the answer to a Probe.
	Health *Health `json:"health,omitempty"`
	// Refused says why the writer closes the connection.
	Refused string `json:"refused,omitempty"`
}

// Hello is the first message of each side.
type Hello struct {
	// Version of what the writer writes, and the Oldest reader that may take it.
	Version int `json:"version"`
	Oldest  int `json:"oldest"`
	// Role of the writer.
	Role Role `json:"role"`
}

// Role is who talks.
type Role string

// The roles.
const (
	// Speaker says what is wanted.
	Speaker Role = "speaker"
	// Process keeps it: ironlb-bgpd.
	Process Role = "bgpd"
	// Child has GoBGP: "ironlb-bgpd gobgp".
	Child Role = "gobgp"
	// Probe asks for Health and nothing else.
	Probe Role = "probe"
)

// Down names a peer whose session is to go down, and why.
type Down struct {
	Peer string `json:"peer"`
	Why  string `json:"why"`
}

// Up names a peer.
type Up struct {
	Peer string `json:"peer"`
}

// Leave says who is told.
type Leave struct {
	// All also are those with graceful restart: nobody comes back for a while.
	All bool `json:"all,omitempty"`
}

// Health is how ironlb-bgpd is. That it answers tells that it lives.
type Health struct {
	// Problem is why it cannot speak BGP though peers are wanted, empty if it can.
	Problem string `json:"problem,omitempty"`
}

func hello(role Role) Message {
	return Message{Hello: &Hello{Version: version, Oldest: oldest, Role: role}}
}

// encode returns the line.
func encode(m Message) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	line, err := json.Marshal(m) // which has no line break in it
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	if line = append(line, '\n'); len(line) > Limit {
		return nil, fmt.Errorf("a message of %d octets is longer than %d", len(line), Limit)
	}
	return line, nil
}

// decode reads a line. If it is lenient unknown fields are passed over, as what a newer writer says to older readers.
func decode(line []byte, lenient bool) (Message, error) {
	var m Message
	dec := json.NewDecoder(bytes.NewReader(line))
	if !lenient {
		dec.DisallowUnknownFields()
	}
	if err := dec.Decode(&m); err != nil {
		return Message{}, fmt.Errorf("decode a message: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Message{}, errors.New("decode a message: there is more after it on the line")
	}
	if err := m.check(); err != nil {
		return Message{}, fmt.Errorf("decode a message: %w", err)
	}
	return m, nil
}

func (m Message) check() error {
	set := 0
	for _, is := range []bool{m.Hello != nil, m.Change != nil, m.Report != nil, m.Down != nil, m.Up != nil, m.Leave != nil, m.Health != nil, m.Refused != ""} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return fmt.Errorf("a message has one part, this one %d", set)
	case m.Change != nil:
		return checkChange(*m.Change)
	case m.Down != nil && m.Down.Peer == "":
		return errors.New("down names no peer")
	case m.Up != nil && m.Up.Peer == "":
		return errors.New("up names no peer")
	}
	return nil
}

// checkChange finds what no planner plans and no driver should be handed.
func checkChange(c plan.BGPChange) error {
	if (c.RouterID.IsValid() || len(c.Peers) > 0) && !c.RouterID.Is4() {
		return fmt.Errorf("router id %v is no IPv4 address", c.RouterID)
	}
	for name, p := range c.Peers {
		if name == "" {
			return errors.New("a peer has no name")
		}
		if p == nil && c.Whole {
			return fmt.Errorf("peer %s is taken away in a whole set", name)
		}
		if p != nil && (!p.Address.IsValid() || p.Address.IsUnspecified()) {
			return fmt.Errorf("peer %s has the address %v", name, p.Address)
		}
	}
	for prefix, r := range c.Routes {
		if !prefix.IsValid() || prefix != prefix.Masked() {
			return fmt.Errorf("prefix %v is not valid, or has host bits", prefix)
		}
		if _, ok := r[""]; ok {
			return fmt.Errorf("route %v is for a peer without name", prefix)
		}
	}
	return nil
}
