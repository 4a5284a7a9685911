package l2

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// A host may answer for every address (proxy ARP, RFC 1027; a proxy of neighbor discovery, RFC 4861, 7.2.8). It is
// detected by its answer for an address that no host can have: the dummy address of IPv4 (RFC 7600), and one of the
// discard prefix of IPv6 (RFC 6666). The latter has random low bits, so that no other host has its group.
var (
	controlAddrs = [families]netip.Addr{
		ipv4: netip.MustParseAddr("192.0.0.8"), ipv6: netip.MustParseAddr("100::5ab7:c31e:9d4f:26e8"),
	}
	// controlBlocks are the reserved prefixes of these addresses. If one of the announced addresses is in a block,
	// there is no control.
	controlBlocks = [families]netip.Prefix{
		ipv4: netip.MustParsePrefix("192.0.0.0/24"), ipv6: netip.MustParsePrefix("100::/64"),
	}
	// controlFor is how long an answer is awaited after the last probe. A proxy of neighbor discovery may delay it by
	// a random time of up to a second (RFC 4861, 7.2.8, MAX_ANYCAST_DELAY_TIME).
	controlFor = [families]time.Duration{ipv4: 300 * time.Millisecond, ipv6: 1300 * time.Millisecond}
)

const (
	// controlInterval is the minimum interval between the starts of two controls of a responder.
	controlInterval = 10 * time.Second
	// proxyLifetime is how long a host counts as a proxy after its last answer for the control address. After half of
	// that it is controlled again.
	proxyLifetime = 5 * time.Minute
	maxProxies    = 16
	// reportFor is the time for the caller to give up the other addresses of the VirtualIP after a conflict.
	reportFor = 300 * time.Millisecond
)

// control is a check for proxies on a responder: probes for an address that no host has. It is a separate sender, so
// that its job differs from one for the same address.
type control struct {
	*responder
	began time.Time
	// scheduled is set once the probes are scheduled. ends is zero until the last probe was sent.
	scheduled, over bool
	ends            time.Time
}

// probeEnded implements sender. The schedule calls it after the gap that follows the last probe.
func (c *control) probeEnded(netip.Addr) {
	c.of.mu.Lock()
	c.ends = time.Now().Add(controlFor[c.family] - probeGaps[len(probeGaps)-1])
	c.of.mu.Unlock()
	c.of.wakeRun()
}

// proxyKey is a host on an interface, for a family.
type proxyKey struct {
	index, family int
	mac           mac
}

// proxy is a host that answers for every address.
type proxy struct {
	on              string
	since, answered time.Time
}

// ignored reports whether a host's answer for an address does not count: the host answers for every address, and did
// not use this one unasked.
func (a *Announcer) ignored(r *responder, e *entry, by mac, now time.Time) bool {
	_, is := a.proxies[proxyKey{r.link.index, r.family, by}]
	return is && !(e.conflict != nil && e.conflict.mac == by && e.conflict.byItself(now))
}

// byItself reports whether the host has used the address other than by an answer.
func (c *conflict) byItself(now time.Time) bool { return now.Sub(c.unasked) < probeRemovedFor }

// startControl starts a control of a responder, unless the last one was less than controlInterval ago, and returns
// the running one, or nil.
func (a *Announcer) startControl(r *responder, now time.Time) *control {
	c := a.controls[r]
	switch {
	case c != nil && !c.over:
		return c
	case c != nil && now.Sub(c.began) < controlInterval, !a.checkable(r):
		return nil
	}
	c = &control{responder: r, began: now}
	a.controls[r], a.changed = c, true
	a.wakeRun()
	return c
}

// checkable reports whether no host on the interface can have the control address.
func (a *Announcer) checkable(r *responder) bool {
	for addr := range a.entries {
		if controlBlocks[r.family].Contains(addr) {
			return false
		}
	}
	has := func(p netip.Prefix) bool { return p.Contains(controlAddrs[r.family]) }
	return !slices.ContainsFunc(a.network.subnets[r.link.index], has)
}

// answered records a host that answered for the control address. Addresses in conflict with that host are probed again
// at once, except those that it has used by itself.
func (a *Announcer) answered(r *responder, by mac, now time.Time) {
	key := proxyKey{r.link.index, r.family, by}
	p, known := a.proxies[key]
	switch {
	case !known && len(a.proxies) >= maxProxies:
		return
	case !known:
		p = proxy{on: r.link.name, since: now}
		a.metrics[r.family].proxies.Inc()
		a.cfg.Log.Warn("another host answers for every address (proxy ARP): its answers are ignored; disable proxy ARP "+
			"there, because it attracts clients' packets for VirtualIP addresses", "mac", net.HardwareAddr(by[:]).String(),
			"interface", r.link.name, "family", r.codec.family())
		a.cfg.Wake()
	}
	p.answered = now
	a.proxies[key] = p
	for addr, e := range a.entries {
		c := e.conflict
		if c != nil && familyOf(addr) == r.family && c.mac == by && c.on == r.link.name && !c.byItself(now) {
			e.clear(now)
		}
	}
	a.wakeRun()
}

// controlsDue processes due events of proxies and controls, and returns the next due time; zero if there is none.
func (a *Announcer) controlsDue(now time.Time) (due time.Time) {
	later := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	for key, p := range a.proxies {
		recheck, ends := p.answered.Add(proxyLifetime/2), p.answered.Add(proxyLifetime)
		if !now.Before(ends) {
			delete(a.proxies, key)
			a.metrics[key.family].proxies.Dec()
			a.cfg.Log.Info("a host stopped answering for every address",
				"mac", net.HardwareAddr(key.mac[:]).String(), "interface", p.on)
			a.cfg.Wake()
			continue
		}
		if !now.Before(recheck) {
			if on := a.ports[key.index]; on != nil && on.responders[key.family] != nil {
				a.startControl(on.responders[key.family], now)
			}
			recheck = now.Add(controlInterval)
		}
		later(recheck)
		later(ends)
	}
	for r, c := range a.controls {
		switch {
		case r.closed.Load():
			a.end(c, now)
			delete(a.controls, r)
		case c.over:
		case !c.ends.IsZero() && !now.Before(c.ends), !a.checkable(r):
			a.end(c, now)
		case !c.ends.IsZero():
			later(c.ends)
		}
	}
	return due
}

// end ends a control. The conflicts that waited for it are reported, because their hosts did not answer for the control
// address. If the responder was closed, it found nothing, and they are cleared.
func (a *Announcer) end(c *control, now time.Time) {
	c.over, a.changed = true, true
	if p := a.ports[c.link.index]; p != nil {
		p.schedule.stop(binding{on: c, addr: controlAddrs[c.family]})
	}
	for addr, e := range a.entries {
		switch {
		case e.conflict == nil || e.conflict.pending != c:
		case c.closed.Load():
			e.clear(now)
		default:
			a.report(addr, e, now)
		}
	}
}

// clear ends a conflict with a host that does not have the address. A reported conflict ends after the address has been
// probed.
func (e *entry) clear(now time.Time) {
	if e.phase == holding || e.conflict.pending != nil {
		e.conflict = nil
	}
	if e.phase == refused {
		e.until = now
	}
}

// pendingVIPs returns the VirtualIPs with an address in a conflict that is not reported yet, or was reported less than
// reportFor ago, with the time of the next evaluation. The caller uses all addresses of a VirtualIP or none, and must
// be able to give the others up first.
func (a *Announcer) pendingVIPs(now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, e := range a.entries {
		if e.conflict == nil || e.phase == holding || !e.removedAt.IsZero() {
			continue
		}
		until := e.conflict.since.Add(reportFor)
		if e.conflict.pending != nil {
			until = now.Add(reportFor)
		}
		if until.After(now) && until.After(out[e.vip]) {
			out[e.vip] = until
		}
	}
	return out
}

// watch adds the control addresses to the watched addresses of the responders, while controls run.
func (a *Announcer) watch(sets map[int]*[families]duties) {
	for r, c := range a.controls {
		if set := sets[r.link.index]; set != nil && !c.over && !r.closed.Load() {
			set[r.family].watched[controlAddrs[r.family]] = struct{}{}
		}
	}
}

// Proxies returns the hosts that answer for every address.
func (a *Announcer) Proxies() []view.Proxy {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []view.Proxy
	for key, p := range a.proxies {
		out = append(out, view.Proxy{
			MAC: net.HardwareAddr(key.mac[:]).String(), Interface: p.on, Family: codecs[key.family].family(), Since: p.since,
		})
	}
	slices.SortFunc(out, func(x, y view.Proxy) int {
		return cmp.Or(cmp.Compare(x.Interface, y.Interface), cmp.Compare(x.MAC, y.MAC), cmp.Compare(x.Family, y.Family))
	})
	return out
}
