package l2

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// A station that answers for every address (proxy ARP, RFC 1027; ndppd) has no address of ours. It is known by its
// answers for control addresses, which are chosen at random in the subnet of the address in question, so that nobody
// can know them and no host has all of them: one with a quarter of the subnet answers for all with 1 in 65,000.
const (
	controls = 8
	// controlFor is how long an answer is waited for: two probes and the time after them.
	controlFor = 300 * time.Millisecond
	// controlAgain is the least time between two checks of a responder.
	controlAgain = 10 * time.Second
	// proxyFor is how long a proxy counts as one, from its last answer for all controls.
	proxyFor   = 5 * time.Minute
	maxProxies = 16
	// maxCleared bounds the stations that were found to be no proxies, which is not checked again for proxyFor.
	maxCleared = 64
	// controlBits is the longest IPv4 prefix with addresses enough to choose from, aroundBits the prefixes to choose from
	// where the address is in no subnet of the interface.
	controlBits             = 26
	aroundBits4, aroundBits = 24, 64
)

// control is a check for proxies on one responder.
type control struct {
	by      mac // who gave rise to it
	began   time.Time
	running bool
	// fresh is set until the addresses are watched, asked holds those that are probed for.
	fresh    bool
	asked    map[netip.Addr]bool
	answered map[netip.Addr]map[mac]struct{}
}

// answer records an answer and reports whether its sender has now answered for all.
func (c *control) answer(addr netip.Addr, by mac) bool {
	macs, is := c.answered[addr]
	if !c.running || !is || len(macs) >= maxProxies {
		return false
	}
	macs[by] = struct{}{}
	for _, macs := range c.answered {
		if _, too := macs[by]; !too {
			return false
		}
	}
	return true
}

// choose returns random addresses of a prefix, without its first and last, that are not taken; nil if it is too small.
func choose(in netip.Prefix, taken func(netip.Addr) bool, random func() byte) []netip.Addr {
	if in.Addr().Is4() && in.Bits() > controlBits || in.Bits() > 120 {
		return nil
	}
	var out []netip.Addr
	for range 100 * controls { // nearly all may be taken
		b := in.Addr().AsSlice()
		last, first := true, true
		for i := in.Bits(); i < in.Addr().BitLen(); i++ {
			bit := random() & 1
			b[i/8] = b[i/8]&^(0x80>>(i%8)) | bit<<(7-i%8)
			last, first = last && bit == 1, first && bit == 0
		}
		addr, _ := netip.AddrFromSlice(b)
		if !last && !first && !taken(addr) && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
		if len(out) == controls {
			return out
		}
	}
	return nil
}

// around returns the prefix in which the neighbours of an address are.
func around(addr netip.Addr, subnets []netip.Prefix) netip.Prefix {
	for _, p := range subnets {
		if p.Contains(addr) {
			return p.Masked()
		}
	}
	bits := aroundBits
	if addr.Is4() {
		bits = aroundBits4
	}
	return netip.PrefixFrom(addr, bits).Masked()
}

// proxyKey is a station on an interface, for a family.
type proxyKey struct {
	index, family int
	mac           mac
}

type proxy struct {
	on           string
	since, until time.Time
}

// suspect is who answered for an address that is probed for, while a check runs.
type suspect struct {
	on *responder
	by mac
}

// isProxy reports whether a station is known to answer for everything. Its answers count for nothing.
func (a *Announcer) isProxy(r *responder, addr netip.Addr, by mac, now time.Time) bool {
	p, is := a.proxies[proxyKey{r.link.index, r.family, by}]
	if !is || !now.Before(p.until) {
		return false
	}
	if p.until.Sub(now) < proxyFor/2 {
		a.check(r, addr, by, now)
	}
	return true
}

// check begins a check for proxies near an address for which a station answered, and reports whether one runs.
func (a *Announcer) check(r *responder, near netip.Addr, by mac, now time.Time) bool {
	if c := a.controls[r]; c != nil && (c.running || now.Sub(c.began) < controlAgain) {
		return c.running
	}
	if at, is := a.cleared[proxyKey{r.link.index, r.family, by}]; is && now.Sub(at) < proxyFor {
		return false
	}
	taken := func(addr netip.Addr) bool { return a.entries[addr] != nil }
	chosen := choose(around(near, a.network.subnets[r.link.index]), taken, func() byte { return byte(rand.Uint32()) })
	if chosen == nil {
		return false
	}
	c := &control{
		by: by, began: now, running: true, fresh: true,
		asked: map[netip.Addr]bool{}, answered: map[netip.Addr]map[mac]struct{}{},
	}
	for _, addr := range chosen {
		c.answered[addr] = map[mac]struct{}{}
	}
	a.controls[r] = c
	a.poke()
	return true
}

// suspects puts a conflict off until it is known whether the other station answers for everything, and reports whether
// it has.
func (a *Announcer) suspects(r *responder, addr netip.Addr, e *entry, by mac, now time.Time) bool {
	switch {
	case e.phase == refused:
		return e.suspect != nil
	case e.phase != probing || !a.check(r, addr, by, now):
		return false
	}
	a.stopProbes(addr, e)
	e.suspect = &suspect{on: r, by: by}
	e.phase, e.asked, e.until = refused, nil, a.controls[r].began.Add(2*controlFor)
	return true
}

// prove records a station that answered for all controls.
func (a *Announcer) prove(r *responder, by mac, now time.Time) {
	key := proxyKey{r.link.index, r.family, by}
	p, known := a.proxies[key]
	if !known && len(a.proxies) >= maxProxies {
		return
	}
	if !known {
		p = proxy{on: r.link.name, since: now}
		a.cfg.Log.Warn("another host answers for every address (proxy ARP): its answers do not count; switch that off "+
			"there, for it takes clients' packets for addresses of ours", "mac", net.HardwareAddr(by[:]).String(),
			"interface", r.link.name, "family", r.codec.family())
		a.cfg.Kick()
	}
	p.until = now.Add(proxyFor)
	a.proxies[key] = p
	a.metrics[r.family].proxies.Set(a.countProxies(r.family))
	for addr, e := range a.entries {
		if familyOf(addr) != r.family || e.conflict == nil || e.conflict.mac != by || e.conflict.on != r.link.name {
			continue
		}
		if e.phase == holding {
			e.conflict = nil
		} else if e.phase == refused {
			e.until = now
		}
	}
	a.poke()
}

func (a *Announcer) countProxies(family int) (n float64) {
	for key := range a.proxies {
		if key.family == family {
			n++
		}
	}
	return n
}

// checks ends what is over, and returns whether the responders' duties have changed and when to come again.
func (a *Announcer) checks(now time.Time) (changed bool, due time.Time) {
	later := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	for r, c := range a.controls {
		changed = changed || c.fresh
		c.fresh = false
		switch {
		case r.closed.Load():
			delete(a.controls, r)
		case c.running && !now.Before(c.began.Add(controlFor)):
			c.running, changed = false, true
			a.resolve(r, c, now)
		case c.running:
			later(c.began.Add(controlFor))
		}
	}
	for key, p := range a.proxies {
		if now.Before(p.until) {
			later(p.until)
			continue
		}
		delete(a.proxies, key)
		a.metrics[key.family].proxies.Set(a.countProxies(key.family))
		a.cfg.Log.Info("a host was not found to answer for every address any more",
			"mac", net.HardwareAddr(key.mac[:]).String(), "interface", p.on)
		a.cfg.Kick()
	}
	return changed, due
}

// resolve ends what waited for a check: addresses that proxies alone answered for are probed for again, the others are
// in conflict.
func (a *Announcer) resolve(r *responder, c *control, now time.Time) {
	a.clear(r, c.by, now)
	for addr, e := range a.entries {
		s := e.suspect
		if s == nil || s.on != r {
			continue
		}
		if e.suspect = nil; e.phase != refused {
			continue
		}
		if a.isProxy(r, addr, s.by, now) {
			e.phase, e.asked = probing, map[*responder]bool{}
			continue
		}
		a.clear(r, s.by, now)
		a.note(e, r, addr, s.by, now)
		a.refuse(addr, e, now)
	}
}

// doubtful returns the VirtualIPs of which another address is in a conflict that is not known for long, or may be, with
// the end of that: the caller, who uses all addresses of one or none, gives them up first.
func (a *Announcer) doubtful(now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, e := range a.entries {
		until := e.until
		switch {
		case e.phase != refused || !e.left.IsZero():
			continue
		case e.suspect == nil && e.conflict == nil:
			continue
		case e.suspect == nil:
			until = e.conflict.since.Add(controlFor)
		}
		if until.After(now) && until.After(out[e.vip]) {
			out[e.vip] = until
		}
	}
	return out
}

// clear records a station that is no proxy, unless it is one.
func (a *Announcer) clear(r *responder, by mac, now time.Time) {
	key := proxyKey{r.link.index, r.family, by}
	maps.DeleteFunc(a.cleared, func(_ proxyKey, at time.Time) bool { return now.Sub(at) >= proxyFor })
	if _, is := a.proxies[key]; !is && len(a.cleared) < maxCleared {
		a.cleared[key] = now
	}
}

// watch adds the control addresses to what the responders watch.
func (a *Announcer) watch(sets map[int]*[families]duties) {
	for r, c := range a.controls {
		set := sets[r.link.index]
		if set == nil || !c.running {
			continue
		}
		for addr := range c.answered {
			if !has(set[r.family].held, addr) {
				set[r.family].watched[addr] = struct{}{}
			}
		}
	}
}

// Proxies are the stations that answer for every address.
func (a *Announcer) Proxies() []plan.Proxy {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []plan.Proxy
	for key, p := range a.proxies {
		out = append(out, plan.Proxy{
			MAC: net.HardwareAddr(key.mac[:]).String(), Interface: p.on, Family: codecs[key.family].family(), Since: p.since,
		})
	}
	slices.SortFunc(out, func(x, y plan.Proxy) int {
		return cmp.Or(cmp.Compare(x.Interface, y.Interface), cmp.Compare(x.MAC, y.MAC), cmp.Compare(x.Family, y.Family))
	})
	return out
}
