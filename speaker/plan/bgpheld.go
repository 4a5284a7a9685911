package plan

import (
	"maps"
	"net/netip"
	"slices"
)

// held is what a Planner keeps to judge whether any node announces an address that is not as it should be here.
type held struct {
	// standings are what nodes have of what it takes to announce, reach is where advertisements reach; both as far as that was asked. oldest are
	// the BGPPeers in their order, nil if that was not.
	standings map[string]standing
	reach     map[adFamily]adReach
	oldest    []string
	doubtful  map[netip.Addr]doubt
	ignorant  bool // as it was last
}

func newHeld() held {
	return held{standings: map[string]standing{}, reach: map[adFamily]adReach{}, doubtful: map[netip.Addr]doubt{}}
}

// doubt is an address that is not as it should be on this node, where the others decide whether that is worth a word.
type doubt struct {
	reason Reason
	ads    []string // that are for it, on whatever node
	// could are the nodes that may take what is sent to it, with NoLocalEndpoint.
	could map[string]struct{}
	// nobody is set if no node is as it should be, tell if this one is to say so.
	nobody, tell bool
}

// standing is what a node has of what it takes to announce, by each advertisement that covers it, and whether it has a Node object: one
// without says nothing for others.
type standing struct {
	object bool
	ranks  map[adFamily]rank
}

func (s standing) equal(t standing) bool { return s.object == t.object && maps.Equal(s.ranks, t.ranks) }

type rank uint8

const (
	rankOut    rank = iota // it is on its way out
	rankStays              // it has no peer
	rankSpeaks             // it has one
)

// adReach is where an advertisement reaches in a family, as far as the objects and the other speakers tell.
type adReach struct {
	// spoken is set if a node that it covers has a peer that is told.
	spoken bool
	// first is the node that has most of what it takes, then the first by name, of those that it covers and whose speaker is heard.
	first string
	rank  rank
}

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
	h := &p.bgp.held
	delete(h.doubtful, addr)
	switch reason {
	case NoLocalEndpoint, NoPeer, NoEndpoint, Excluded:
	case Announced, GracefulShutdown, NoService, NoAdvertisement:
		return false
	default: // it cannot be programmed
		return true
	}
	d := p.judged(v, addr, doubt{reason: reason, ads: p.coveredBy(v, s), could: s.could}, true)
	h.doubtful[addr] = d
	return d.tell
}

// judged returns the doubt with what it says now; others is set if a node that could take the address may have another standing than before.
func (p *Planner) judged(v *View, addr netip.Addr, d doubt, others bool) doubt {
	var all adReach
	for _, name := range d.ads {
		all.add(p.reachOf(v, adFamily{name, addr.Is4()}))
	}
	switch {
	case d.reason == NoEndpoint:
		d.nobody = true
	case d.reason != NoLocalEndpoint:
		d.nobody = !all.spoken
	case others:
		d.nobody = true
		for node := range d.could {
			if d.nobody = !p.announces(v, d.ads, node, addr.Is4()); !d.nobody {
				break
			}
		}
	}
	d.tell = d.nobody && all.first == p.options.Node && !ignorant(v)
	return d
}

// judgeAgain adds the addresses to out of which this node has something else to say than before because of other nodes. What is to be decided anyway
// if all is set is not judged here.
func (p *Planner) judgeAgain(v *View, touched Touched, all bool, out map[netip.Addr]struct{}) {
	h := &p.bgp.held
	before := h.ignorant
	h.ignorant = ignorant(v)
	if peers := len(touched.BGPPeers) > 0; peers || all {
		clear(h.standings)
		clear(h.reach)
		h.oldest = nil
		if !all {
			p.judgeDoubtful(v, func(doubt) bool { return true }, out)
		}
		return
	}
	changed := p.otherStandings(v, touched)
	if len(changed)+len(touched.Members) == 0 && before == h.ignorant {
		return
	}
	clear(h.reach)
	p.judgeDoubtful(v, func(d doubt) bool {
		for name := range changed {
			if _, could := d.could[name]; could {
				return true
			}
		}
		return false
	}, out)
}

// judgeDoubtful judges each address again; others is as in judged.
func (p *Planner) judgeDoubtful(v *View, others func(doubt) bool, out map[netip.Addr]struct{}) {
	doubtful := p.bgp.held.doubtful
	for addr, before := range doubtful {
		now := p.judged(v, addr, before, others(before))
		if now.tell != before.tell {
			out[addr] = struct{}{}
		}
		if now.nobody != before.nobody {
			doubtful[addr] = now
		}
	}
}

// otherStandings forgets the standings of the nodes that were touched, and returns those that have another one now. Most of what changes of a Node
// bears on none.
func (p *Planner) otherStandings(v *View, touched Touched) map[string]struct{} {
	h, out := &p.bgp.held, map[string]struct{}{}
	for _, names := range []map[string]struct{}{touched.Nodes, touched.Members} {
		for name := range names {
			before := h.standings[name]
			delete(h.standings, name)
			if len(h.doubtful) > 0 && !before.equal(p.standing(v, name)) {
				out[name] = struct{}{}
			}
		}
	}
	if len(h.doubtful) == 0 {
		clear(h.reach)
	}
	return out
}

// ignorant tells whether this node does not know enough of the others to say anything for all: it does not know yet who else is there, or what it
// knows of the cluster is of an earlier time.
func ignorant(v *View) bool { return v.Members.Observer || v.Stale }

// coveredBy returns the advertisements that are for the Services and pools of an address, on whatever node.
func (p *Planner) coveredBy(v *View, s sharers) (ads []string) {
	for _, name := range p.bgp.ads {
		ad := v.BGPAdvertisements[name]
		if len(ad.Missing) == 0 && ad.covers(s.labels) && !slices.ContainsFunc(s.pools, func(pool string) bool { return !ad.serves(pool, v.Pools[pool].Labels) }) {
			ads = append(ads, name)
		}
	}
	return ads
}

// announces tells whether a node can announce what one of the advertisements is for.
func (p *Planner) announces(v *View, ads []string, node string, v4 bool) bool {
	is := p.standing(v, node)
	return slices.ContainsFunc(ads, func(ad string) bool { return is.ranks[adFamily{ad, v4}] == rankSpeaks })
}

// standing returns that of a node; it is worked out once for all addresses. A node that has no Node object any more and is heard goes on as it was
// (bgpPlan.node): of it all is taken to be so that it can. One that is not heard either has none.
func (p *Planner) standing(v *View, name string) standing {
	h := &p.bgp.held
	if out, known := h.standings[name]; known {
		return out
	}
	node, known := v.Nodes[name]
	if !known && !v.Members.Peers[name].Alive {
		return standing{}
	}
	out, peers := standing{known, map[adFamily]rank{}}, p.sessionsOf(v, node, known)
	for _, of := range p.bgp.ads {
		ad := v.BGPAdvertisements[of]
		if known && !ad.on(node.Labels) {
			continue
		}
		for _, v4 := range []bool{true, false} {
			is := rankStays
			switch {
			case node.isOut():
				is = rankOut
			case ad.speaks(v.BGPPeers, peers, !known || node.has(v4), v4):
				is = rankSpeaks
			}
			out.ranks[adFamily{of, v4}] = is
		}
	}
	h.standings[name] = out
	return out
}

// speaks tells whether one of the peers to which a node speaks is told addresses of the family, of which the node has one itself or not.
func (a BGPAdvertisement) speaks(peers map[string]BGPPeer, sessions []string, has, v4 bool) bool {
	return slices.ContainsFunc(sessions, func(name string) bool {
		peer := peers[name]
		return (len(a.Peers) == 0 || slices.Contains(a.Peers, name)) && (peer.Address.Is4() == v4 || peer.DualStack && has)
	})
}

func (n Node) has(v4 bool) bool {
	_, has := n.address(v4)
	return has
}

// sessionsOf returns the peers to which a node speaks, as planPeers decides it, or to which one of which nothing is known may.
func (p *Planner) sessionsOf(v *View, node Node, known bool) (out []string) {
	h := &p.bgp.held
	if h.oldest == nil {
		h.oldest = oldestFirst(v.BGPPeers)
	}
	for _, name := range h.oldest {
		peer := v.BGPPeers[name]
		first := func() bool {
			return !slices.ContainsFunc(out, func(older string) bool { return v.BGPPeers[older].Address == peer.Address })
		}
		if !peer.barred() && (!known || peer.On(node.Labels) && first()) {
			out = append(out, name)
		}
	}
	return out
}

// barred tells whether no node has a session with the peer. One whose password is not known yet has those that it had: what speaks to the routers
// keeps them.
func (p BGPPeer) barred() bool { return p.Wrong != "" && p.Wrong != PasswordUnknown }

// isOut tells whether a node announces nothing new, whatever the objects of BGP say.
func (n Node) isOut() bool { return n.Excluded || n.Leaving || n.NetworkUnavailable }

// reachOf returns where an advertisement reaches; it is worked out once for all addresses.
func (p *Planner) reachOf(v *View, of adFamily) adReach {
	h := &p.bgp.held
	if r, known := h.reach[of]; known {
		return r
	}
	var out adReach
	for name := range v.Nodes {
		is, covered := p.standing(v, name).ranks[of]
		if !covered {
			continue
		}
		r := adReach{rank: is, spoken: is == rankSpeaks}
		if member := v.Members.Peers[name]; name == p.options.Node || member.Alive && !member.Leaving {
			r.first = name
		}
		out.add(r)
	}
	for name, member := range v.Members.Peers {
		if _, known := v.Nodes[name]; !known && member.Alive { // it does not say anything for others
			out.spoken = out.spoken || p.standing(v, name).ranks[of] == rankSpeaks
		}
	}
	h.reach[of] = out
	return out
}
