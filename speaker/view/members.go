package view

import "time"

// Members is the observed state of the other members, without the API server (docs/design/failover.md).
type Members struct {
	// Observer is set while this node must claim nothing: it has just started, or resumed after a stall.
	Observer bool
	// Fences counts how often this node had to release everything. It claims and answers again only after a publication
	// of its claims.
	Fences uint64
	// Isolated are the interfaces on which this node receives no member although others receive one another there.
	Isolated map[string]struct{}
	// Segments are the interfaces on which members are received; the owners on any other one are not known yet. Nil
	// means all interfaces.
	Segments map[string]struct{}
	// Returned counts how often a member became reachable again, overall or on a segment, without a restart: it may
	// have answered for any address meanwhile.
	Returned int
	// Interval is this node's heartbeat interval, Dead its dead time: those of the profile, longer in a large cluster. 0:
	// unknown.
	Interval, Dead time.Duration
	// Peers are the other nodes received since this process began, by name.
	Peers map[string]Member
}

// Informed reports whether a member is reachable and all claims of all reachable members are known. Otherwise this node
// may be cut off, or has just recovered from that.
func (m Members) Informed() bool {
	received := false
	for _, p := range m.Peers {
		if p.Alive && !p.Synced {
			return false
		}
		received = received || p.Alive
	}
	return received
}

// Received reports whether a reachable member receives this node.
func (m Members) Received() bool {
	for _, p := range m.Peers {
		if p.Alive && !p.Away && !p.Observer && len(p.Asymmetric) < len(p.On) {
			return true
		}
	}
	return false
}

// Directs reports whether packets can be sent to a node through a tunnel, according to its speaker, with ipv6 also IPv6
// packets. A node that was never received cannot; while this node is an observer it may not have been received yet, and
// counts.
func (m Members) Directs(node string, ipv6 bool) bool {
	peer, received := m.Peers[node]
	return peer.Direct && !(ipv6 && peer.DirectIPv4Only) || !received && m.Observer
}

// Member is the observed state of another node.
type Member struct {
	// Alive is set if it was received recently on any path.
	Alive bool
	// Away is set while its speaker is being replaced: it answers for its claims and cannot take over.
	Away bool
	// On are the interfaces of this node on which it counts as alive. Asymmetric are those of them with an asymmetric
	// link: it reports that it does not receive this node there.
	On, Asymmetric map[string]struct{}
	// Observer and Leaving are its reported state: it must claim nothing yet; its process is about to end.
	Observer, Leaving bool
	// Direct is set if it last reported that it can receive packets through tunnels, DirectIPv4Only if that is so for
	// IPv4 only.
	Direct, DirectIPv4Only bool
	// Synced is set once all its claims are known.
	Synced bool
	// Returned is set if it counted as dead until just now and was not restarted: its claims may predate a takeover by
	// others.
	Returned bool
	// Claims are its published claims.
	Claims map[VIPID]Claim
}
