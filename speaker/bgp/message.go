// Package bgp carries the BGP configuration from the speaker to ironlb-bgpd and from there to the process with GoBGP
// of each peer, and the session states back. docs/design/bgp.md describes the connections.
//
// Both kinds of connections carry lines of JSON: changes down, the full status up. The first change of a connection is
// complete, later ones contain only what changed. A side that cannot process a line closes the connection; the next
// connection begins with the full state.
//
// The speaker and ironlb-bgpd are replaced one by one, so builds must interoperate: unknown fields are ignored, and
// missing ones have their zero values. A change may add fields; it may not remove or rename them, or change their types
// or meanings. A field that older readers must not ignore, such as a limit on the peers of a route, needs another name
// for the field that contains it: older readers then refuse the line, because it is empty.
package bgp

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// request is a line from the speaker to ironlb-bgpd.
type request struct {
	Change *routes.Change `json:"change,omitempty"`
	// Idle is set in the first line of a speaker that has no configuration yet, instead of a change.
	Idle bool `json:"idle,omitempty"`
	// Metrics is set in the only line of a request for the metrics.
	Metrics bool `json:"metrics,omitempty"`
}

// Status is a line from ironlb-bgpd: its full state. The first line does not wait for a request, so a health probe only
// reads that.
type Status struct {
	// Sessions by the name of their peer.
	Sessions map[string]routes.Session `json:"sessions"`
	// Applied is the Serial of a change that GoBGP has applied with all earlier ones.
	Applied uint64 `json:"applied,omitempty"`
	// Problem is why it cannot run BGP although peers are configured, empty if it can.
	Problem string `json:"problem,omitempty"`
	// Refused is why it closes the connection.
	Refused string `json:"refused,omitempty"`
	// Metrics are in the answer to a request for them, in Prometheus' text format.
	Metrics string `json:"metrics,omitempty"`
}

// order is a line from ironlb-bgpd to the process of a peer. Exactly one field is set.
type order struct {
	Change *PeerChange `json:"change,omitempty"`
	// Down takes the session down at once, for that reason.
	Down string `json:"down,omitempty"`
	// Up reports that the path to the peer works again.
	Up bool `json:"up,omitempty"`
	// Leave requests an orderly end, after which the process ends.
	Leave *Leave `json:"leave,omitempty"`
}

// PeerChange is a change of what one peer receives.
type PeerChange struct {
	// Full is set if the routes are complete: anything missing is withdrawn.
	Full   bool   `json:",omitempty"`
	Serial uint64 `json:",omitempty"`
	// Peer is always set, with the router ID of the process.
	Peer routes.Peer
	// Routes that are nil are withdrawn.
	Routes map[netip.Prefix]*view.Attributes
}

// Leave is the orderly end of a session.
type Leave struct {
	// Removed: the peer is no longer configured, so the session ends at once.
	Removed bool `json:"removed,omitempty"`
}

// peerStatus is a line from the process of a peer: its full state.
type peerStatus struct {
	Session routes.Session `json:"session"`
	// Applied is the Serial of the last change that is applied.
	Applied uint64 `json:"applied,omitempty"`
}

func (r *request) check() error {
	c := r.Change
	if set := count(c != nil, r.Idle, r.Metrics); set != 1 {
		return fmt.Errorf("a request has a change, is idle or is for metrics; this one is %d of these", set)
	}
	if c == nil {
		return nil
	}
	if (c.RouterID.IsValid() || len(c.Peers) > 0) && !c.RouterID.Is4() {
		return fmt.Errorf("router id %v is no IPv4 address", c.RouterID)
	}
	for name, p := range c.Peers {
		if name == "" {
			return errors.New("a peer has no name")
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

func (o *order) check() error {
	if set := count(o.Change != nil, o.Down != "", o.Up, o.Leave != nil); set != 1 {
		return fmt.Errorf("an order has one part, this one %d", set)
	}
	return nil
}

// count returns how many are true.
func count(all ...bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

// add merges a later change into c, whose maps are its own.
func (c *PeerChange) add(later PeerChange) {
	if later.Full || c.Routes == nil {
		*c = PeerChange{Full: later.Full, Routes: make(map[netip.Prefix]*view.Attributes, len(later.Routes))}
	}
	c.Serial, c.Peer = later.Serial, later.Peer
	maps.Copy(c.Routes, later.Routes)
}

// merge returns two changes as one: first a, which may be nil, then b. The maps of a are its own, and so are those of
// the result; routes and peers are shared, and never modified.
func merge(a *routes.Change, b routes.Change) *routes.Change {
	serial := b.Serial
	if a != nil {
		serial = max(a.Serial, serial)
	}
	if a == nil || b.Full {
		a = &routes.Change{Full: b.Full, Peers: map[string]*routes.Peer{}, Routes: make(map[netip.Prefix]routes.Route, len(b.Routes))}
	}
	a.RouterID, a.NodeDecommissioning, a.Serial = b.RouterID, b.NodeDecommissioning, serial
	maps.Copy(a.Peers, b.Peers)
	maps.Copy(a.Routes, b.Routes)
	return a
}

// fullChange returns the change that leads to b from any state.
func fullChange(b routes.BGP) *routes.Change {
	out := &routes.Change{Full: true, RouterID: b.RouterID, NodeDecommissioning: b.NodeDecommissioning, Serial: b.Serial,
		Peers: make(map[string]*routes.Peer, len(b.Peers)), Routes: maps.Clone(b.Routes)}
	for name, p := range b.Peers {
		out.Peers[name] = &p
	}
	return out
}
