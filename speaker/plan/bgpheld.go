package plan

import (
	"cmp"
	"net/netip"
	"slices"
)

// adReach is where an advertisement reaches in a family beyond this node, as far as the objects and the other speakers tell.
type adReach struct {
	// spoken is set if a node that it covers has a peer that is told.
	spoken bool
	// first is the node that has most of what it takes, then the first by name, of those that it covers and whose speaker is heard.
	first string
	rank  int
}

// What a node has of what it takes to announce.
const (
	rankOut    = iota // it is on its way out
	rankStays         // it has no peer
	rankSpeaks        // it has one
)

func (r *adReach) add(q adReach) {
	r.spoken = r.spoken || q.spoken
	if q.first != "" && (r.first == "" || q.rank > r.rank || q.rank == r.rank && q.first < r.first) {
		r.first, r.rank = q.first, q.rank
	}
}

// tell decides whether this node is to say what became of an address. What could not be programmed is said by each node that could not. What
// no node takes, and what is announced though nobody is there, is said by one node: the first that is covered. That a node without an
// endpoint announces nothing for policy Local while another one can is as it should be, and so is a peer of another node's.
func (p *Planner) tell(v *View, addr netip.Addr, s sharers, reason Reason) bool {
	b := &p.bgp
	delete(b.doubtful, addr)
	switch reason {
	case NoLocalEndpoint, NoPeer, NoEndpoint, Excluded:
	case Announced, GracefulShutdown, NoService, NoAdvertisement:
		return false
	default: // it cannot be programmed
		return true
	}
	ads := p.coveredBy(v, s)
	var all adReach
	for _, name := range ads {
		all.add(p.reach(v, adFamily{name, addr.Is4()}))
	}
	nobody := true
	switch reason {
	case NoLocalEndpoint:
		for node := range s.could {
			nobody = nobody && !p.announces(v, ads, node, addr.Is4())
		}
	case NoPeer, Excluded:
		nobody = !all.spoken
	}
	b.doubtful[addr] = nobody
	return nobody && all.first == p.options.Node && !ignorant(v)
}

// ignorant tells whether this node does not know enough of the others to say anything for all: it does not know yet who else is there, or what it
// knows of the cluster is of an earlier time.
func ignorant(v *View) bool { return v.Members.Observer || v.Stale }

// coveredBy returns the advertisements that are for the Services and pools of an address, on whatever node.
func (p *Planner) coveredBy(v *View, s sharers) (ads []string) {
	for _, name := range p.bgp.ads {
		ad := v.BGPAdvertisements[name]
		if len(ad.Missing) == 0 && ad.covers(s.labels) && !slices.ContainsFunc(s.pools, func(pool string) bool { return !ad.serves(pool, v.Pools[pool]) }) {
			ads = append(ads, name)
		}
	}
	return ads
}

// announces tells whether a node can announce what one of the advertisements is for.
func (p *Planner) announces(v *View, ads []string, name string, v4 bool) bool {
	node, known := v.Nodes[name]
	return known && !node.isOut() && slices.ContainsFunc(ads, func(ad string) bool {
		return v.BGPAdvertisements[ad].on(node.Labels) && v.BGPAdvertisements[ad].speaks(v.BGPPeers, node, v4)
	})
}

// speaks tells whether a node has a peer that is told addresses of the family.
func (a BGPAdvertisement) speaks(peers map[string]BGPPeer, node Node, v4 bool) bool {
	_, has := node.address(v4)
	for name, peer := range peers {
		if (len(a.Peers) == 0 || slices.Contains(a.Peers, name)) && (peer.Address.Is4() == v4 || peer.DualStack && has) && hasSession(peers, name, node) {
			return true
		}
	}
	return false
}

// hasSession tells whether a node speaks to a peer, as planPeers decides it.
func hasSession(peers map[string]BGPPeer, name string, node Node) bool {
	peer := peers[name]
	if peer.barred() || !peer.On(node.Labels) {
		return false
	}
	for other, q := range peers {
		older := cmp.Or(cmp.Compare(q.Created, peer.Created), cmp.Compare(other, name)) < 0
		if older && q.Address == peer.Address && !q.barred() && q.On(node.Labels) {
			return false
		}
	}
	return true
}

// barred tells whether no node has a session with the peer. One whose password is not known yet has those that it had: what speaks to the routers
// keeps them.
func (p BGPPeer) barred() bool { return p.Wrong != "" && p.Wrong != PasswordUnknown }

// isOut tells whether a node announces nothing new, whatever the objects of BGP say.
func (n Node) isOut() bool { return n.Excluded() || n.Leaving || n.NetworkUnavailable }

// reach returns where an advertisement reaches; it is worked out once for all addresses.
func (p *Planner) reach(v *View, of adFamily) adReach {
	b := &p.bgp
	if r, known := b.reach[of]; known {
		return r
	}
	var out adReach
	ad := v.BGPAdvertisements[of.ad]
	for name, node := range v.Nodes {
		if !ad.on(node.Labels) {
			continue
		}
		is := adReach{rank: rankStays}
		switch {
		case node.isOut():
			is.rank = rankOut
		case ad.speaks(v.BGPPeers, node, of.v4):
			is.rank, is.spoken = rankSpeaks, true
		}
		if member := v.Members.Peers[name]; name == p.options.Node || member.Alive && !member.Leaving {
			is.first = name
		}
		out.add(is)
	}
	b.reach[of] = out
	return out
}
