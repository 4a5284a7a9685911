package routes

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// held is the Planner's state to evaluate whether any node announces an address that this node does not serve as
// expected.
type held struct {
	// standings are the evaluated nodes, reach the evaluated advertisements, both as far as needed. oldest are the
	// BGPPeers in their order, nil if not needed yet.
	standings map[string]standing
	reach     map[adFamily]adReach
	oldest    []string
	doubtful  map[netip.Addr]doubt
	ignorant  bool // at the last plan
}

func newHeld() held {
	return held{standings: map[string]standing{}, reach: map[adFamily]adReach{}, doubtful: map[netip.Addr]doubt{}}
}

// doubt is an address that this node does not serve as expected. Whether to report it depends on the other nodes.
type doubt struct {
	reason view.Reason
	ads    []string // for the address, on any node
	// could are the nodes that may forward its traffic, with NoLocalEndpoint.
	could map[string]struct{}
	// noNode is set if no node serves it as expected, report if this node is the one to report it.
	noNode, report bool
}

// standing is the ability of a node to announce, by advertisement that covers it, and whether it has a Node object: a
// node without one reports nothing on behalf of others.
type standing struct {
	object bool
	ranks  map[adFamily]rank
}

func (s standing) equal(t standing) bool { return s.object == t.object && maps.Equal(s.ranks, t.ranks) }

type rank uint8

const (
	rankOut       rank = iota // it is decommissioning
	rankNoPeer                // it has no peer
	rankAnnounces             // it has a peer
)

// adReach is the reach of an advertisement in a family, according to the objects and the other members.
type adReach struct {
	// received is set if a covered node has a peer that receives it.
	received bool
	// first is the covered node with a reachable speaker that has the highest rank, then the first by name.
	first string
	rank  rank
}

func (r *adReach) add(q adReach) {
	r.received = r.received || q.received
	if q.first != "" && (r.first == "" || q.rank > r.rank || q.rank == r.rank && q.first < r.first) {
		r.first, r.rank = q.first, q.rank
	}
}

// mustReport reports whether this node must report an address. Each node reports what it could not program. One node,
// the first covered one, reports an address that no node announces, or that is announced without endpoints. It is as
// expected that a node without an endpoint announces nothing for policy Local while another node can, and that only
// another node has a peer.
func (p *Planner) mustReport(v *view.View, addr netip.Addr, s sharers, reason view.Reason) bool {
	h := &p.held
	delete(h.doubtful, addr)
	switch reason {
	case view.NoLocalEndpoint, view.NoPeer, view.NoEndpoint, view.Excluded:
	case view.Announced, view.GracefulShutdown, view.NoService, view.NoAdvertisement:
		return false
	default: // it cannot be programmed
		return true
	}
	d := p.evaluated(v, addr, doubt{reason: reason, ads: p.coveredBy(v, s), could: s.could}, true)
	h.doubtful[addr] = d
	return d.report
}

// evaluated evaluates a doubt again. others is set if the standing of a node that could take the address may have
// changed.
func (p *Planner) evaluated(v *view.View, addr netip.Addr, d doubt, others bool) doubt {
	var all adReach
	for _, name := range d.ads {
		all.add(p.reachOf(v, adFamily{name, addr.Is4()}))
	}
	switch {
	case d.reason == view.NoEndpoint:
		d.noNode = true
	case d.reason != view.NoLocalEndpoint:
		d.noNode = !all.received
	case others:
		d.noNode = true
		for node := range d.could {
			if d.noNode = !p.announces(v, d.ads, node, addr.Is4()); !d.noNode {
				break
			}
		}
	}
	d.report = d.noNode && all.first == p.name && !lacksClusterState(v)
	return d
}

// reevaluate adds to out the addresses that this node must report differently because of other nodes. If all is set,
// addresses that are decided anyway are not evaluated here.
func (p *Planner) reevaluate(v *view.View, touched view.Touched, all bool, out map[netip.Addr]struct{}) {
	h := &p.held
	before := h.ignorant
	h.ignorant = lacksClusterState(v)
	if peers := len(touched.BGPPeers) > 0; peers || all {
		clear(h.standings)
		clear(h.reach)
		h.oldest = nil
		if !all {
			p.reevaluateDoubtful(v, func(doubt) bool { return true }, out)
		}
		return
	}
	changed := p.otherStandings(v, touched)
	if len(changed)+len(touched.Members) == 0 && before == h.ignorant {
		return
	}
	clear(h.reach)
	p.reevaluateDoubtful(v, func(d doubt) bool {
		for name := range changed {
			if _, could := d.could[name]; could {
				return true
			}
		}
		return false
	}, out)
}

// reevaluateDoubtful evaluates each doubtful address again; others is as in evaluated.
func (p *Planner) reevaluateDoubtful(v *view.View, others func(doubt) bool, out map[netip.Addr]struct{}) {
	doubtful := p.held.doubtful
	for addr, before := range doubtful {
		now := p.evaluated(v, addr, before, others(before))
		if now.report != before.report {
			out[addr] = struct{}{}
		}
		if now.noNode != before.noNode {
			doubtful[addr] = now
		}
	}
}

// otherStandings drops the standings of the touched nodes and returns those with a different one now. Most changes of a
// Node affect none.
func (p *Planner) otherStandings(v *view.View, touched view.Touched) map[string]struct{} {
	h, out := &p.held, map[string]struct{}{}
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

// lacksClusterState reports whether this node lacks the information to report for the cluster: the other members are
// not known yet, or the cluster state comes from a snapshot.
func lacksClusterState(v *view.View) bool { return v.Members.Observer || v.FromSnapshot }

// coveredBy returns the advertisements for the Services and pools of an address, on any node.
func (p *Planner) coveredBy(v *view.View, s sharers) (ads []string) {
	for _, name := range p.ads {
		ad := v.BGPAdvertisements[name]
		if len(ad.Missing) == 0 && ad.Covers(s.labels) && !slices.ContainsFunc(s.pools, func(pool string) bool { return !ad.Serves(pool, v.Pools[pool].Labels) }) {
			ads = append(ads, name)
		}
	}
	return ads
}

// announces reports whether a node can announce by one of the advertisements.
func (p *Planner) announces(v *view.View, ads []string, node string, v4 bool) bool {
	is := p.standing(v, node)
	return slices.ContainsFunc(ads, func(ad string) bool { return is.ranks[adFamily{ad, v4}] == rankAnnounces })
}

// standing returns the standing of a node, computed once for all addresses. A reachable node whose Node object is
// deleted continues as before (Planner.node), so it is assumed to be able to announce. An unreachable one has no
// standing.
func (p *Planner) standing(v *view.View, name string) standing {
	h := &p.held
	if out, known := h.standings[name]; known {
		return out
	}
	node, known := v.Nodes[name]
	if !known && !v.Members.Peers[name].Alive {
		return standing{}
	}
	out, peers := standing{known, map[adFamily]rank{}}, p.sessionsOf(v, node, known)
	for _, of := range p.ads {
		ad := v.BGPAdvertisements[of]
		if known && !ad.On(node.Labels) {
			continue
		}
		for _, v4 := range []bool{true, false} {
			is := rankNoPeer
			switch {
			case isOut(node):
				is = rankOut
			case reaches(ad, v.BGPPeers, peers, !known || hasFamily(node, v4), v4):
				is = rankAnnounces
			}
			out.ranks[adFamily{of, v4}] = is
		}
	}
	h.standings[name] = out
	return out
}

// reaches reports whether one of the node's peers receives addresses of the family. has is set if the node has an
// address of it.
func reaches(a view.BGPAdvertisement, peers map[string]view.BGPPeer, sessions []string, has, v4 bool) bool {
	return slices.ContainsFunc(sessions, func(name string) bool {
		peer := peers[name]
		return (len(a.Peers) == 0 || slices.Contains(a.Peers, name)) && (peer.Address.Is4() == v4 || peer.DualStack && has)
	})
}

func hasFamily(n view.Node, v4 bool) bool {
	_, has := n.Address(v4)
	return has
}

// sessionsOf returns the peers of a node, as in planPeers, or the possible peers of an unknown node.
func (p *Planner) sessionsOf(v *view.View, node view.Node, known bool) (out []string) {
	h := &p.held
	if h.oldest == nil {
		h.oldest = oldestFirst(v.BGPPeers)
	}
	for _, name := range h.oldest {
		peer := v.BGPPeers[name]
		first := func() bool {
			return !slices.ContainsFunc(out, func(older string) bool { return v.BGPPeers[older].Address == peer.Address })
		}
		if !barred(peer) && (!known || peer.On(node.Labels) && first()) {
			out = append(out, name)
		}
	}
	return out
}

// barred reports whether no node has a session with the peer. A peer whose password is not known yet keeps its sessions
// in the BGP daemon.
func barred(p view.BGPPeer) bool { return p.Wrong != "" && p.Wrong != PasswordUnknown }

// isOut reports whether a node announces nothing new, whatever the BGP objects contain.
func isOut(n view.Node) bool { return n.Excluded || n.BeingDeleted || n.NetworkUnavailable }

// reachOf returns the reach of an advertisement, computed once for all addresses.
func (p *Planner) reachOf(v *view.View, of adFamily) adReach {
	h := &p.held
	if r, known := h.reach[of]; known {
		return r
	}
	var out adReach
	for name := range v.Nodes {
		is, covered := p.standing(v, name).ranks[of]
		if !covered {
			continue
		}
		r := adReach{rank: is, received: is == rankAnnounces}
		if member := v.Members.Peers[name]; name == p.name || member.Alive && !member.Leaving {
			r.first = name
		}
		out.add(r)
	}
	for name, member := range v.Members.Peers {
		if _, known := v.Nodes[name]; !known && member.Alive { // it reports nothing on behalf of others
			out.received = out.received || p.standing(v, name).ranks[of] == rankAnnounces
		}
	}
	h.reach[of] = out
	return out
}
