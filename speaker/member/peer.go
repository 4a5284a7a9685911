package member

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// peer is another node.
type peer struct {
	name  string
	id    uint64
	addrs []netip.Addr // InternalIPs

	incarnation, newest uint64 // newest is the highest sequence number on any path
	newestAt            time.Time
	arrived             time.Time // when a datagram arrived from it, proved or not
	heartbeat           uint64    // sequence number of the newest one with segments
	ended               bool
	flags               byte
	direct              bool   // its last report of whether it can receive packets through tunnels
	directIPv4Only      bool   // that of whether only those of IPv4
	slots               uint64 // its last digest of its slots, if hasSlots is set
	hasSlots            bool
	dead                time.Duration // its own dead time
	segments            []segment
	paths               []path // by interface index; the first means any path
	first               time.Time
	from                netip.Addr // source of its last datagram
	internal            time.Time  // when one arrived from an InternalIP
	unicast             time.Time  // when one arrived that was not sent to a group
	sources             []source   // the last of these by InternalIP

	clock           clock
	claims          replica
	claimsRequested time.Time // when its claims were requested
	tries           int
	// retainedUntil is until when the node answers for the claims of an ended process; retainedClaims are those claims,
	// once the next process is received. away is set while no process of the node is received and its kernel answers.
	retainedUntil  time.Time
	away           bool
	retainedClaims map[view.VIPID]view.Claim

	// Pending messages to it.
	wants         bool
	wantsAfter    uint64
	wantsGroup    bool // the answer is sent to the group
	probesSelf    bool // it probes whether this node is alive
	relayRequests []about
	relayAnswers  []relayEvidence
	recruited     time.Time // when others were last asked to pass this node's datagrams on to it
	missed        []uint64  // nodes that receive none of this node's datagrams: a request to pass them on
	passedOn      [][]byte  // datagrams of nodes that it misses
	newerThan     uint64
	newerTo       netip.Addr

	missedBy []missing // nodes that receive none of its datagrams
	passed   window    // its datagrams that this node passed on, or received so

	// unproved is set until a new process of this node has received an answer to its challenge: the datagrams may be a
	// recording. Until then it is alive only by relay. challenged is when it was asked last; proves is a pending answer.
	unproved   bool
	challenged time.Time
	// challengedByGroup is when the group was last asked, too.
	challengedByGroup time.Time
	proves            uint64

	died bool // died without a goodbye
	// givenUp is set from when it stopped answering while away until it is received again.
	givenUp bool
	// returned is when it was received again after it had died; it is cleared once the node has had time to detect
	// that.
	returned time.Time
}

// source is the last datagram by unicast from an InternalIP.
type source struct {
	received time.Time
	iface    string
}

// path is the reception of a peer on one interface.
type path struct {
	group, group4                     time.Time // when a datagram to the group, or a broadcast, arrived last; by IPv4
	received, relayed, relayRequested time.Time
	up                                bool
	byRelay                           bool // not received by this node itself for a dead time
	lost                              bool // was up, and became silent without a goodbye
	asymmetric                        bool // asymmetric link: it reports that it does not receive this node there
	unreported                        int  // number of heartbeats since, without room to repeat that report
	none                              bool // it reports that it receives no node there, noneAt: when it did last
	noneAt                            time.Time
	oneWay                            bool // so it counts as dead there, although it is received
	window                            window
	// from is the source of the last datagram, or of the last one to the group if byGroup is set. silences counts
	// unanswered probes while the node is away; othersReceived is set if another node was received there when it became
	// away.
	from           netip.Addr
	byGroup        bool
	silences       int
	othersReceived bool
}

// last is when the peer was last seen alive there, directly or by relay.
func (p *path) last() time.Time {
	if p.relayed.After(p.received) {
		return p.relayed
	}
	return p.received
}

// iface is an interface of this node.
type iface struct {
	name string
	keys []uint64 // the first one identifies it if no common key is found
	mac  [6]byte
	link bool // VirtualIPs may be announced here
	// since is when link was set; first and last are the start and the end of the current period of reception.
	since, first, last time.Time
	ever               bool // any node was received since
	never              bool // none was for a dead time since
	isolated           bool // as reported; also set while it only listens
	cut                bool // this node receives none there, and others receive each other, or no host answers
	// silent is set while no node was received for half a dead time, none after a dead time. answers is what hosts there
	// answer then.
	silent, none bool
	answers      view.Answers
	ipv4         bool // has an IPv4 subnet
	unsent       bool // the last datagram to the group could not be sent
}

// silentSince returns the time of the last datagram of any node, or since when there could be one.
func (f *iface) silentSince() time.Time { return later(f.last, f.since) }

// is reports whether a key is one of the interface's segment.
func (f *iface) is(key uint64) bool { return slices.Contains(f.keys, key) }

// keyFor returns the key that a peer uses for the segment of an interface: one that it advertises too, or else the
// first.
func (f *iface) keyFor(p *peer) uint64 {
	for _, key := range f.keys {
		if slices.ContainsFunc(p.segments, func(s segment) bool { return s.key == key }) {
			return key
		}
	}
	if len(f.keys) == 0 {
		return 0
	}
	return f.keys[0]
}

// window accepts each sequence number once, in any order within 64 (RFC 4303 section 3.4.3 and appendix A2).
type window struct{ top, seen uint64 }

func (w *window) fresh(n uint64) bool {
	switch {
	case n > w.top:
		return true
	case w.top-n >= 64:
		return false
	}
	return w.seen&(1<<(w.top-n)) == 0
}

func (w *window) add(n uint64) {
	if n > w.top {
		if n-w.top >= 64 {
			w.seen = 0
		} else {
			w.seen <<= n - w.top
		}
		w.top = n
	}
	w.seen |= 1 << (w.top - n)
}

// SetLinks sets the interfaces on which VirtualIPs are or may be announced: those that are up. On a new or returning
// interface this node listens for a dead time before it claims anything there.
func (c *Core) SetLinks(now time.Time, links []Link) {
	c.steady = time.Time{}
	changed := false
	for i := range c.ifaces {
		if f := &c.ifaces[i]; f.link && !containsLink(links, f.name) {
			f.link, changed = false, true
		}
	}
	for _, l := range links {
		i := c.iface(l.Name)
		if i == 0 {
			continue
		}
		f := &c.ifaces[i]
		if !f.link {
			*f = iface{name: f.name, link: true, since: now, first: f.first, last: f.last}
			f.ever = !f.last.IsZero() && now.Sub(f.last) < c.profile.Dead
			changed = true
		}
		if !slices.Equal(f.keys, l.Keys) || f.mac != l.MAC || f.ipv4 != l.IPv4 {
			f.keys, f.mac, f.ipv4, c.heartbeatNow = l.Keys, l.MAC, l.IPv4, true
		}
	}
	if !changed {
		return
	}
	c.watchLinks(now, 0)
	c.out.own()
	for _, p := range c.order {
		c.out.node(p)
	}
}

func containsLink(links []Link, name string) bool {
	for _, l := range links {
		if l.Name == name {
			return true
		}
	}
	return false
}

// maxIfaces limits the number of distinct interfaces.
const maxIfaces = 64

// findIface returns the index of an interface if it has one.
func (c *Core) findIface(name string) (at int, known bool) {
	for i := 1; i < len(c.ifaces); i++ {
		if c.ifaces[i].name == name {
			return i, true
		}
	}
	return 0, false
}

// iface returns the index of an interface, 0 if there are too many.
func (c *Core) iface(name string) int {
	if i, known := c.findIface(name); known {
		return i
	}
	for i := 1; i < len(c.ifaces); i++ {
		if f := &c.ifaces[i]; len(c.ifaces) == maxIfaces && !f.link && c.lastTick.Sub(f.last) > time.Minute {
			*f = iface{name: name}
			for _, p := range c.order {
				p.paths[i] = path{}
			}
			return i
		}
	}
	if len(c.ifaces) == maxIfaces {
		return 0
	}
	c.ifaces = append(c.ifaces, iface{name: name})
	for _, p := range c.order {
		p.paths = append(p.paths, path{})
	}
	return len(c.ifaces) - 1
}
