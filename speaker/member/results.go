package member

import (
	"maps"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// outbox is what has changed since the last snapshot.
type outbox struct {
	nodes       map[string]struct{}
	vips        map[view.VIPID]struct{}
	mine        bool // Observer or Isolated
	dirty       map[*peer]struct{}
	macs        bool
	silences    []time.Duration // of the paths that died
	lastMembers view.Members
}

// Reception is what this node receives.
type Reception struct {
	// Nodes are those whose speakers are received directly, not only by relay, and receive others. For a node that was
	// once received from one of its InternalIPs, only their network counts. For an observer, a missing node means nothing.
	Nodes    map[string]struct{}
	Observer bool
	// Silent are the interfaces on which no speaker is received, with the beginnings of the silence: this node may be cut
	// off there.
	Silent map[string]time.Time
}

func newOutbox() outbox {
	return outbox{nodes: map[string]struct{}{}, vips: map[view.VIPID]struct{}{}, dirty: map[*peer]struct{}{}, mine: true}
}

func (o *outbox) node(p *peer)      { o.dirty[p] = struct{}{} }
func (o *outbox) vip(id view.VIPID) { o.vips[id] = struct{}{} }
func (o *outbox) own()              { o.mine = true }

// silent records a silence, unless they are not read.
func (o *outbox) silent(d time.Duration) {
	if len(o.silences) < 1024 {
		o.silences = append(o.silences, d)
	}
}

// Changed reports whether Members would return a change.
func (c *Core) Changed() bool { return c.out.mine || len(c.out.dirty) > 0 || len(c.out.vips) > 0 }

// Members returns the state and claims of all members, and the nodes and VirtualIPs whose state or claims differ from
// the last call's. This node is among the nodes when Observer, Isolated or Returned changed. The results do not change
// later.
func (c *Core) Members() (m view.Members, nodes map[string]struct{}, vips map[view.VIPID]struct{}) {
	o := &c.out
	m = o.lastMembers
	m.Observer, m.Fences, m.Returned, m.Interval, m.Dead = c.observer, c.fences, c.returned, c.profile.Interval, c.profile.Dead
	if o.mine || m.Isolated == nil {
		m.Isolated, m.Segments = map[string]struct{}{}, map[string]struct{}{}
		for i := 1; i < len(c.ifaces); i++ {
			if c.ifaces[i].link {
				m.Segments[c.ifaces[i].name] = struct{}{}
			}
			if c.ifaces[i].link && c.ifaces[i].isolated {
				m.Isolated[c.ifaces[i].name] = struct{}{}
			}
		}
		o.nodes[c.config.Node] = struct{}{}
	}
	if len(o.dirty) > 0 || m.Peers == nil {
		peers := maps.Clone(m.Peers) // the large part of the cost with a thousand nodes
		if peers == nil {
			peers = map[string]view.Member{}
		}
		for p := range o.dirty {
			switch {
			case c.peers[p.name] == nil: // removed
				delete(peers, p.name)
			case c.peers[p.name] == p && !p.first.IsZero():
				now := c.member(p)
				if before, was := m.Peers[p.name]; was && sameBut(before, now) {
					delete(o.dirty, p) // its claims are reported separately
				}
				peers[p.name] = now
			}
		}
		for p := range o.dirty {
			if _, is := peers[p.name]; is || m.Peers[p.name].On != nil {
				o.nodes[p.name] = struct{}{}
			}
		}
		m.Peers = peers
	}
	o.lastMembers = m
	nodes, vips = o.nodes, o.vips
	o.nodes, o.vips, o.mine = map[string]struct{}{}, map[view.VIPID]struct{}{}, false
	clear(o.dirty)
	return m, nodes, vips
}

// sameBut reports whether two states of a node differ in nothing but its claims.
func sameBut(m, n view.Member) bool {
	return m.Alive == n.Alive && m.Away == n.Away && m.Observer == n.Observer && m.Leaving == n.Leaving &&
		m.Synced == n.Synced && m.Direct == n.Direct && m.DirectIPv4Only == n.DirectIPv4Only &&
		m.Returned == n.Returned && maps.Equal(m.On, n.On) && maps.Equal(m.Asymmetric, n.Asymmetric)
}

func (c *Core) member(p *peer) view.Member {
	m := view.Member{
		Alive: p.paths[0].up, Away: p.away, On: map[string]struct{}{},
		Observer: p.flags&flagObserver != 0, Leaving: p.flags&flagLeaving != 0, Direct: p.direct, DirectIPv4Only: p.directIPv4Only,
		Synced: p.synced(), Claims: p.claimed(), Returned: !p.returned.IsZero(),
	}
	for i := 1; i < len(c.ifaces); i++ {
		f := &c.ifaces[i]
		if !f.link || !c.counts(p, i) {
			continue
		}
		w := &p.paths[i]
		if !w.oneWay {
			m.On[f.name] = struct{}{}
		}
		if w.asymmetric || w.oneWay {
			if m.Asymmetric == nil {
				m.Asymmetric = map[string]struct{}{}
			}
			m.Asymmetric[f.name] = struct{}{}
		}
	}
	return m
}

// counts reports whether a node counts as alive on an interface. If no node has been received there since the link came
// up, for a dead time at least, broadcast does not pass between nodes, and only the node network counts, once the node
// has answered a challenge: until then its datagrams count on no interface.
func (c *Core) counts(p *peer, at int) bool {
	return p.paths[at].up || c.ifaces[at].never && p.paths[0].up && !p.unproved
}

// MACs returns the hardware addresses that the other nodes advertise for their segments.
func (c *Core) MACs() map[[6]byte]string {
	macs := map[[6]byte]string{}
	for _, p := range c.order {
		for _, s := range p.segments {
			macs[s.mac] = p.name
		}
	}
	return macs
}

// Received returns what this node receives, and whether that has changed since the last call. The result must not be
// changed.
func (c *Core) Received() (now Reception, changed bool) {
	if c.reported.Nodes != nil && c.reportedAt.Equal(c.lastTick) {
		return c.reported, false // evaluated once a tick
	}
	c.reportedAt = c.lastTick
	var silent map[string]time.Time
	for i := range c.ifaces {
		if f := &c.ifaces[i]; f.silent {
			if silent == nil {
				silent = map[string]time.Time{}
			}
			silent[f.name] = f.silentSince()
		}
	}
	same := c.reported.Observer == c.observer && c.reported.Nodes != nil && maps.Equal(c.reported.Silent, silent)
	count := 0
	for _, p := range c.order {
		if !c.receives(p) {
			continue
		}
		count++
		_, was := c.reported.Nodes[p.name]
		same = same && was
	}
	if same && count == len(c.reported.Nodes) {
		return c.reported, false
	}
	nodes := make(map[string]struct{}, count)
	for _, p := range c.order {
		if c.receives(p) {
			nodes[p.name] = struct{}{}
		}
	}
	c.reported = Reception{Nodes: nodes, Observer: c.observer, Silent: silent}
	return c.reported, true
}

// receives reports whether datagrams arrive from a node itself, and it receives others by their InternalIPs. Its
// InternalIP network counts as silent once other paths have delivered its datagrams for a dead time and that network
// none. So a stall of this node makes nothing silent.
func (c *Core) receives(p *peer) bool {
	any := &p.paths[0]
	return any.up && !any.byRelay && !p.away && !any.none && (p.internal.IsZero() || any.received.Sub(p.internal) < p.deadAfter(c))
}

// Slots returns the digests of the other nodes' slots, of those that differ from this node's; nil if there are none. A
// node counts if it is alive and observes no more, and can receive the same through tunnels as this node: its slots
// should be equal.
func (c *Core) Slots() map[string]uint64 {
	if !c.hasSlots || c.observer || !c.published.Direct {
		return nil
	}
	var out map[string]uint64
	for _, p := range c.order {
		alike := p.direct && p.directIPv4Only == c.published.DirectIPv4Only
		if !p.hasSlots || p.slots == c.slots || !alike || !p.paths[0].up || p.away || p.flags&(flagObserver|flagLeaving) != 0 {
			continue
		}
		if out == nil {
			out = map[string]uint64{}
		}
		out[p.name] = p.slots
	}
	return out
}
