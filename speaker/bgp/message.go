// Package bgp carries the BGP configuration from the speaker to ironlb-bgpd and from there to the process with GoBGP,
// and the session states back. docs/design/bgp.md describes the connections.
//
// A connection carries lines of JSON, one Message each. Each side begins with a Hello. The first change of a connection
// is complete, later ones contain only what changed; the same holds for reports. A side that cannot process a message
// closes the connection; the next connection begins with the full state.
package bgp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Versions of the protocol. The containers of a Pod may be replaced one by one, so two versions must interoperate.
//
// A new field that older readers may ignore (without a wrong result) raises version only. A new field that must not be
// ignored, such as a limit on the peers of a route, raises oldest to version: older readers then refuse with a reason.
// A reader accepts the messages of older writers: missing fields have their zero values.
const (
	// version is the version that this code writes. Since 2 a change may have a Serial, which a report returns, and
	// NodeDecommissioning, a peer a RouterID, and a session a BFDMessage; since 3 a peer may have MaxReceivedPrefixes.
	version = 3
	oldest  = 1 // the oldest reader that can process it
)

// Limit is the maximum length of a line, in octets. A full set of 10,000 routes to two peers is about 1 MB.
const Limit = 64 << 20

// Message is one line. Exactly one of its fields is set.
type Message struct {
	Hello  *Hello          `json:"hello,omitempty"`
	Change *plan.BGPChange `json:"change,omitempty"`
	Report *plan.BGPReport `json:"report,omitempty"`
	// Down takes a session down at once.
	Down *Down `json:"down,omitempty"`
	// Up reports that the path to a peer works again.
	Up *Up `json:"up,omitempty"`
	// Leave requests an orderly end, after which the reader ends.
	Leave *Leave `json:"leave,omitempty"`
	// Health is the answer to a Probe.
	Health *Health `json:"health,omitempty"`
	// Refused is the reason why the writer closes the connection.
	Refused string `json:"refused,omitempty"`
}

// Hello is the first message of each side.
type Hello struct {
	// Version is the writer's version, Oldest the oldest reader version that can process its messages.
	Version int `json:"version"`
	Oldest  int `json:"oldest"`
	// Role is the writer's role.
	Role Role `json:"role"`
}

// Role is the role of one side of a connection.
type Role string

// The roles.
const (
	// Speaker sends the configuration.
	Speaker Role = "speaker"
	// Process stores it: ironlb-bgpd.
	Process Role = "bgpd"
	// Child runs GoBGP: "ironlb-bgpd gobgp".
	Child Role = "gobgp"
	// Probe requests Health only.
	Probe Role = "probe"
)

// Down names a peer and the reason why its session must go down.
type Down struct {
	Peer string `json:"peer"`
	Why  string `json:"why"`
}

// Up names a peer whose path works again.
type Up struct {
	Peer string `json:"peer"`
}

// Leave selects the peers that are notified.
type Leave struct {
	// All includes those with graceful restart: no process will follow for a while.
	All bool `json:"all,omitempty"`
}

// Health is the state of ironlb-bgpd. An answer shows that it is alive.
type Health struct {
	// Problem is why it cannot run BGP although peers are configured, empty if it can.
	Problem string `json:"problem,omitempty"`
}

func hello(role Role) Message {
	return Message{Hello: &Hello{Version: version, Oldest: oldest, Role: role}}
}

// encode returns the message as a line.
func encode(m Message) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	line, err := json.Marshal(m) // the result contains no line break
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	if line = append(line, '\n'); len(line) > Limit {
		return nil, fmt.Errorf("a message of %d octets is longer than %d", len(line), Limit)
	}
	return line, nil
}

// decode parses a line. If lenient is set, unknown fields are ignored, as in the messages of newer writers.
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

// checkChange rejects changes that the planner never produces and that no driver must receive.
func checkChange(c plan.BGPChange) error {
	if (c.RouterID.IsValid() || len(c.Peers) > 0) && !c.RouterID.Is4() {
		return fmt.Errorf("router id %v is no IPv4 address", c.RouterID)
	}
	for name, p := range c.Peers {
		if name == "" {
			return errors.New("a peer has no name")
		}
		if p == nil && c.Full {
			return fmt.Errorf("peer %s is removed in a full set", name)
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
