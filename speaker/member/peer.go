package member

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// peer is another node.
type peer struct {
	name  string
	id    uint64
	addrs []netip.Addr // InternalIPs

	incarnation, newest uint64 // newest is the highest sequence on any path
	newestAt            time.Time
	ended               bool
	flags               byte
	minor               byte          // version of its datagrams
	dead                time.Duration // its own dead time
	segments            []segment
	paths               []path // by the index of the interface; the first is any path
	first               time.Time
	from                netip.Addr // where its last datagram came from
	fromIface           int
	internal            time.Time // when one came from an InternalIP

	clock  clock
	claims replica
	asked  time.Time // when its claims were asked for
	tries  int
	// retainedUntil is until when it answers for what an ended process claimed; former are those claims once the next one is heard.
	// away is set while no process of the node is heard, and it answers.
	retainedUntil time.Time
	away          bool
	former        map[plan.VIPID]plan.Claim

	// What waits to be sent to it.
	wants       bool
	wantsAfter  uint64
	wantsGroup  int  // interface whose group gets the answer, 0 for none
	doubts      bool // it asks whether this node lives
	helpAbout   []about
	answerAbout []sighting
	newerThan   uint64
	newerTo     netip.Addr

	died bool // without a goodbye
	// givenUp is set if it did not answer while it was away, until it is received again.
	givenUp bool
	// returned is when it was received again after that, until it has had time to find that out.
	returned time.Time
}

// path is how a peer is heard on one interface.
type path struct {
	heard, relayed, asked time.Time
	up                    bool
	byRelay               bool // not heard by this node for a dead time
	lost                  bool // it was up, and became silent without a goodbye
	deaf                  bool // it says that it does not hear this node there
	unsaid                int  // for so many beats it has had no room to say so again
	window                window
	// from is where the last datagram came from, of those to the group if byGroup is set. silences are the questions
	// without an answer while the node is away, company is set if another node was received there when it left.
	from     netip.Addr
	byGroup  bool
	silences int
	company  bool
}

// last is when the peer was last known to be alive there.
func (p *path) last() time.Time {
	if p.relayed.After(p.heard) {
		return p.relayed
	}
	return p.heard
}

// iface is an interface of this node.
type iface struct {
	name string
	keys []uint64 // the first one is what this node calls it where it knows no common one
	mac  [6]byte
	link bool // VirtualIPs may be announced here
	// since is when it became one, first when the present time of hearing somebody began, last when it was so last.
	since, first, last time.Time
	ever               bool // somebody was heard since
	isolated           bool // as told; also while it listens
	cut                bool // others hear one another there
}

// is reports whether a key is one of the interface's segment.
func (f *iface) is(key uint64) bool { return slices.Contains(f.keys, key) }

// keyFor returns the key by which a peer knows the segment of an interface: one that it has named, too, or else the
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

// SetLinks tells the interfaces on which VirtualIPs are or may be announced: those that are up. One that is new, or comes
// back, is listened to for a dead time before this node claims anything there.
func (c *Core) SetLinks(now time.Time, links []Link) {
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
		if !slices.Equal(f.keys, l.Keys) || f.mac != l.MAC {
			f.keys, f.mac, c.beatNow = l.Keys, l.MAC, true
		}
	}
	if !changed {
		return
	}
	c.watchLinks(now)
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

// maxIfaces bounds how many interfaces are told apart.
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
