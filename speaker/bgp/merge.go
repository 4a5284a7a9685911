package bgp

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/speaker/plan"
)

// addChange merges b into a: a, then b. The maps of a are its own; routes and peers are shared, and never modified.
func addChange(a *plan.BGPChange, b plan.BGPChange) {
	serial := max(a.Serial, b.Serial)
	if b.Full || a.Peers == nil {
		*a = plan.BGPChange{
			Full: b.Full, Peers: make(map[string]*plan.Peer, len(b.Peers)), Routes: make(map[netip.Prefix]plan.Route, len(b.Routes)),
		}
	}
	a.RouterID, a.NodeDecommissioning, a.Serial = b.RouterID, b.NodeDecommissioning, serial
	for name, p := range b.Peers {
		if p == nil && a.Full {
			delete(a.Peers, name)
		} else {
			a.Peers[name] = p
		}
	}
	for prefix, r := range b.Routes {
		switch {
		case len(r) > 0:
			a.Routes[prefix] = r
		case a.Full:
			delete(a.Routes, prefix)
		default:
			a.Routes[prefix] = nil
		}
	}
}

// fullChange returns the change that leads to b from any state.
func fullChange(b plan.BGP) plan.BGPChange {
	out := plan.BGPChange{
		Full: true, RouterID: b.RouterID, NodeDecommissioning: b.NodeDecommissioning, Peers: make(map[string]*plan.Peer, len(b.Peers)), Routes: maps.Clone(b.Routes), Serial: b.Serial,
	}
	for name, p := range b.Peers {
		out.Peers[name] = &p
	}
	return out
}

// partOf returns the part of b that concerns a peer.
func partOf(b plan.BGP, peer string) plan.BGP {
	out := plan.BGP{RouterID: b.RouterIDOf(peer), NodeDecommissioning: b.NodeDecommissioning, Peers: map[string]plan.Peer{peer: b.Peers[peer]}, Routes: map[netip.Prefix]plan.Route{}, Serial: b.Serial}
	for prefix, r := range b.Routes {
		if attributes, has := r[peer]; has {
			out.Routes[prefix] = plan.Route{peer: attributes}
		}
	}
	return out
}

// partOfChange returns the part of a change to b that concerns a peer of b.
func partOfChange(b plan.BGP, c plan.BGPChange, peer string) plan.BGPChange {
	out := plan.BGPChange{RouterID: b.RouterIDOf(peer), NodeDecommissioning: c.NodeDecommissioning, Peers: map[string]*plan.Peer{}, Routes: map[netip.Prefix]plan.Route{}, Serial: c.Serial}
	if p, named := c.Peers[peer]; named {
		out.Peers[peer] = p
	}
	for prefix, r := range c.Routes {
		if attributes, has := r[peer]; has {
			out.Routes[prefix] = plan.Route{peer: attributes}
		} else if _, was := b.Routes[prefix][peer]; was {
			out.Routes[prefix] = nil
		}
	}
	return out
}

// addReport merges b into a: a, then b. The map of a is its own.
func addReport(a *plan.BGPReport, b plan.BGPReport) {
	applied := max(a.Applied, b.Applied)
	if b.Full || a.Sessions == nil {
		*a = plan.BGPReport{Full: b.Full, Sessions: make(map[string]*plan.Session, len(b.Sessions))}
	}
	a.Applied = applied
	for name, s := range b.Sessions {
		if s == nil && a.Full {
			delete(a.Sessions, name)
		} else {
			a.Sessions[name] = s
		}
	}
}

// applyReport applies a report to sessions.
func applyReport(sessions map[string]plan.Session, r plan.BGPReport) {
	if r.Full {
		clear(sessions)
	}
	for name, s := range r.Sessions {
		if s == nil {
			delete(sessions, name)
		} else {
			sessions[name] = *s
		}
	}
}

// fullReport returns the report of all sessions.
func fullReport(sessions map[string]plan.Session) plan.BGPReport {
	out := plan.BGPReport{Full: true, Sessions: make(map[string]*plan.Session, len(sessions))}
	for name, s := range sessions {
		out.Sessions[name] = &s
	}
	return out
}
