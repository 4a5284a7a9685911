package l2

import (
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/view"
)

const (
	// defendInterval is the time without a use of an address by another host after which the next one is answered (RFC
	// 5227, 1.1: DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// In a conflict about a held address, a probe is sent each verifyEvery. It ends once verifyMost of them were not
	// answered, and so after conflictEndsAfter.
	verifyEvery       = 2 * time.Second
	verifyMost        = 2
	conflictEndsAfter = (verifyMost + 1) * verifyEvery
	// An address in use by another host is probed again after retrySoon, and after maxConflicts (RFC 5227, 1.1:
	// MAX_CONFLICTS) each retryLate. The RFC's RATE_LIMIT_INTERVAL of a minute is for a host that can use any address,
	// and could try one after another without end; here it is always the same address, and a Service waits for it. If
	// many addresses are in conflict, as behind a host that answers for all, each adds retryEach.
	maxConflicts = 10
	retrySoon    = time.Second
	retryLate    = 3 * time.Second
	retryEach    = 100 * time.Millisecond
	// probeRemovedFor is how long an address that has left the set is probed: another node may serve it, or it is not
	// needed any more.
	probeRemovedFor = 10 * time.Minute
)

// phase of an address.
type phase int

const (
	// holding: the node answers for it.
	holding phase = iota
	// probing: probes check whether another host has it.
	probing
	// refused: another host has it. It will be probed again.
	refused
)

// entry is an address of the set, or one that was given up for a conflict. The latter is probed until the other host is
// gone, so that it is requested again only then.
type entry struct {
	// removedAt is when it left the set, zero while it is in the set.
	removedAt  time.Time
	interfaces []string
	vip        string
	// epoch is Epoch of the announcement.
	epoch int
	phase phase
	// probers are the responders that probe, and whether they have finished.
	probers map[*responder]bool
	// failures counts the conflicts found by probing; until is when the phase refused ends.
	failures int
	until    time.Time
	conflict *conflict
	// lastForeign is when another host last used it while it was held; defended is set once such a use was answered, until
	// there was none for defendInterval.
	lastForeign time.Time
	defended    bool
}

// conflict is another host that uses the address.
type conflict struct {
	mac     mac
	on      string
	since   time.Time
	lastUse time.Time
	// unasked is when it last used the address other than by an answer; zero if never.
	unasked time.Time
	// pending is the control whether the host answers for everything; the conflict is not reported before it ends.
	pending *control
	// unanswered counts the probes without an answer since the last use, nextProbe is when the next one is due: for a held
	// address.
	unanswered int
	nextProbe  time.Time
}

// update updates the entries to the wanted set.
func (a *Announcer) update(want map[netip.Addr]ownership.Announcement, now time.Time) {
	for addr, e := range a.entries {
		if _, ok := want[addr]; ok || !e.removedAt.IsZero() {
			continue
		}
		if e.conflict == nil || e.phase == holding { // a held address is not given up for a conflict
			delete(a.entries, addr)
			continue
		}
		if e.removedAt = now; e.phase != refused {
			a.refuse(addr, e, now)
		}
	}
	for addr, ann := range want {
		e := a.entries[addr]
		begins := e == nil || !e.removedAt.IsZero()
		if e == nil {
			e = &entry{}
			a.entries[addr] = e
		}
		e.interfaces, e.vip, e.removedAt = ann.Interfaces, ann.VIP, time.Time{}
		if e.epoch != ann.Epoch {
			e.epoch = ann.Epoch
			a.reannounce(addr)
		}
		switch {
		case !ann.Probe && (begins || e.phase != holding):
			a.hold(e)
		case ann.Probe && begins:
			e.probe()
		}
	}
}

// probe starts probing for an address.
func (e *entry) probe() { e.phase, e.probers = probing, map[*responder]bool{} }

// reannounce restarts the announcements of an address where it is held.
func (a *Announcer) reannounce(addr netip.Addr) {
	for _, p := range a.ports {
		for _, r := range p.responders {
			if r != nil && has(r.duties.Load().held, addr) {
				at := binding{on: r, addr: addr}
				p.schedule.stop(at)
				p.schedule.announce(time.Now(), at)
			}
		}
	}
}

// hold makes the node answer for an address. If another host really uses it, a packet will show it.
func (a *Announcer) hold(e *entry) {
	e.phase, e.probers, e.failures, e.conflict = holding, nil, 0, nil
}

// Conflicts returns the addresses for which another host answers. An address that has left the set stays among them
// until that host is gone, for ten minutes at most.
func (a *Announcer) Conflicts() map[netip.Addr]view.Conflict {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[netip.Addr]view.Conflict{}
	for addr := range a.used {
		e := a.entries[addr]
		if e == nil || e.conflict == nil {
			delete(a.used, addr)
			continue
		}
		if c := e.conflict; c.pending == nil {
			out[addr] = view.Conflict{MAC: net.HardwareAddr(c.mac[:]).String(), Interface: c.on, Since: c.since}
		}
	}
	return out
}

// usedBy is called by a responder that received a packet of another host that uses a held or watched address; answer is
// set if the packet may be an answer.
func (a *Announcer) usedBy(r *responder, addr netip.Addr, by mac, answer bool) {
	if _, peer := (*a.peers.Load())[by]; peer {
		a.usedByPeer(time.Now())
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || r.closed.Load() {
		return
	}
	now := time.Now()
	e := a.entries[addr]
	if e == nil {
		if answer && addr == controlAddrs[r.family] {
			a.answered(r, by, now)
		}
		return
	}
	if e.phase == holding {
		a.defend(r, addr, e, now)
	}
	var pending *control
	if answer {
		if a.ignored(r, e, by, now) {
			return
		}
		pending = a.startControl(r, now)
	}
	if e.phase == holding { // clients rely on it: a conflict is reported at once
		pending = nil
	}
	if a.recordUse(r, addr, by, pending, now) || e.phase == probing {
		a.wakeRun() // the next due time has changed
	}
	if c := e.conflict; !answer && c.mac == by {
		c.unasked = now
	}
	if e.phase == probing {
		a.refuse(addr, e, now)
	}
}

// defend answers the first use of a held address, and no other one within defendInterval of the use before, so that
// two hosts that keep the address do not announce it for ever. RFC 5227, 2.4 (c): the address is not given up, because
// clients rely on it.
func (a *Announcer) defend(r *responder, addr netip.Addr, e *entry, now time.Time) {
	if now.Sub(e.lastForeign) >= defendInterval {
		e.defended = false
	}
	e.lastForeign = now
	if !e.defended && r.sendAnnouncement(addr, asRequest) {
		e.defended = true
		a.metrics[r.family].defences.Inc()
	}
}

// peerEvery is how often a packet of another speaker that uses an address wakes the reconcile loop, which decides
// between speakers. Any host can send a speaker's hardware address, at any rate.
const peerEvery = 100 * time.Millisecond

func (a *Announcer) usedByPeer(now time.Time) {
	last := a.lastWake.Load()
	if since := now.UnixNano() - last; since >= 0 && since < int64(peerEvery) {
		return
	}
	if a.lastWake.CompareAndSwap(last, now.UnixNano()) {
		a.cfg.Wake()
	}
}

// recordUse records that another host uses an address. It reports a new conflict, after the control if there is one,
// and returns true. Of several hosts that use it at the same time, only the first is reported, to limit the log.
func (a *Announcer) recordUse(r *responder, addr netip.Addr, by mac, pending *control, now time.Time) bool {
	e := a.entries[addr]
	c, since := e.conflict, now
	switch {
	case c == nil:
	case c.pending != nil && pending == nil: // a certain conflict replaces an uncertain one
	case c.mac == by || now.Sub(c.lastUse) < defendInterval:
		c.unanswered, c.nextProbe = 0, now.Add(verifyEvery)
		if c.mac == by {
			c.lastUse = now
		}
		return false
	default:
		since, pending = c.since, nil
	}
	a.used[addr] = struct{}{}
	e.conflict = &conflict{
		mac: by, on: r.link.name, since: since, lastUse: now, pending: pending, nextProbe: now.Add(verifyEvery),
	}
	if pending == nil {
		a.report(addr, e, since)
	}
	return true
}

// report reports a conflict.
func (a *Announcer) report(addr netip.Addr, e *entry, since time.Time) {
	c := e.conflict
	c.pending, c.since = nil, since
	a.metrics[familyOf(addr)].conflicts.Inc()
	does := "defend"
	if e.phase != holding {
		does = "do not use"
	}
	a.lines.Add(slog.LevelWarn, "address conflict: another host uses a VirtualIP address", "address", addr,
		"mac", net.HardwareAddr(c.mac[:]).String(), "interface", c.on, "action", does)
	a.wakeRun()
	a.cfg.Wake()
}

// refuse ends probing: another host uses the address.
func (a *Announcer) refuse(addr netip.Addr, e *entry, now time.Time) {
	a.stopProbes(addr, e)
	wait, others := retrySoon, time.Duration(0)
	if e.failures++; e.failures >= maxConflicts {
		wait = retryLate
	}
	for _, o := range a.entries {
		if o.conflict != nil {
			others++
		}
	}
	e.phase, e.probers, e.until = refused, nil, now.Add(max(wait, others*retryEach))
}

func (a *Announcer) stopProbes(addr netip.Addr, e *entry) {
	for r := range e.probers {
		if p := a.ports[r.link.index]; p != nil {
			p.schedule.stop(binding{on: r, addr: addr})
		}
	}
}

// verify probes whether the other host still uses a held address, and reports whether the conflict is over.
func (a *Announcer) verify(addr netip.Addr, e *entry, now time.Time) bool {
	c := e.conflict
	if c.unanswered == verifyMost {
		return true
	}
	c.nextProbe = now.Add(verifyEvery)
	sent := false
	for _, p := range a.ports {
		if r := p.responders[familyOf(addr)]; r != nil && has(r.duties.Load().held, addr) {
			sent = r.probe(addr) || sent
		}
	}
	if sent { // without a probe, silence proves nothing
		c.unanswered++
	}
	return false
}

// probeEnded is called by a schedule when the probes of a responder for an address are over.
func (a *Announcer) probeEnded(r *responder, addr netip.Addr) {
	a.mu.Lock()
	a.ended = append(a.ended, binding{on: r, addr: addr})
	a.mu.Unlock()
	a.wakeRun()
}

// tick does what is due and returns the next due time, if there is one.
func (a *Announcer) tick(now time.Time) (due time.Time, ok bool) {
	defer a.lines.Flush()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return time.Time{}, false
	}
	for _, p := range a.ended {
		if e := a.entries[p.addr]; e != nil && e.phase == probing {
			if _, known := e.probers[p.on.(*responder)]; known {
				e.probers[p.on.(*responder)] = true
			}
		}
	}
	a.ended = nil
	due = a.controlsDue(now)
	ok = !due.IsZero()
	var ended []netip.Addr
	pending := a.pendingVIPs(now)
	for addr, e := range a.entries {
		at, waits := e.ends()
		if until, is := pending[e.vip]; is && e.passed() {
			if !ok || until.Before(due) {
				due, ok = until, true
			}
			continue
		}
		if e.phase == holding && waits && !at.After(now) && !a.verify(addr, e, now) {
			at = e.conflict.nextProbe
		}
		switch {
		case e.passed() || waits && !at.After(now):
			ended = append(ended, addr)
		case waits && (!ok || at.Before(due)):
			due, ok = at, true
		}
	}
	if len(ended) == 0 && !a.changed {
		return due, ok
	}
	slices.SortFunc(ended, netip.Addr.Compare)
	gone, held := false, false
	for _, addr := range ended {
		a.endPhase(addr, now)
		e := a.entries[addr]
		gone, held = gone || e == nil, held || e != nil && e.phase == holding
	}
	// Announce retries what fails here, and reports it.
	if _, err := a.settle(a.opened, now); err != nil {
		a.stale.Store(true)
	}
	switch {
	case held:
		a.cfg.Resync()
	case gone:
		a.cfg.Wake()
	}
	return now, true // a phase that began now may end earlier than due
}

// drop deletes an address that is not in the set.
func (a *Announcer) drop(addr netip.Addr, e *entry) {
	a.stopProbes(addr, e)
	delete(a.entries, addr)
}

// passed reports whether the address was probed on all its interfaces without an answer.
func (e *entry) passed() bool {
	if e.phase != probing {
		return false
	}
	maps.DeleteFunc(e.probers, func(r *responder, _ bool) bool { return r.closed.Load() })
	for _, done := range e.probers {
		if !done {
			return false
		}
	}
	return len(e.probers) > 0
}

// ends returns when the entry's phase or its conflict ends by itself.
func (e *entry) ends() (time.Time, bool) {
	switch {
	case e.phase == refused:
		return e.until, true
	case e.phase == holding && e.conflict != nil:
		return e.conflict.nextProbe, true
	case !e.removedAt.IsZero(): // its interface may be gone
		return e.removedAt.Add(probeRemovedFor), true
	}
	return time.Time{}, false
}

// endPhase ends the phase or the conflict.
func (a *Announcer) endPhase(addr netip.Addr, now time.Time) {
	e := a.entries[addr]
	removed := !e.removedAt.IsZero()
	if removed && !now.Before(e.removedAt.Add(probeRemovedFor)) {
		a.drop(addr, e)
		return
	}
	switch e.phase {
	case probing:
		if e.conflict != nil && e.conflict.pending == nil {
			a.lines.Add(slog.LevelInfo, "address conflict resolved: no other host answers for the address", "address", addr)
		}
		if removed {
			a.drop(addr, e)
		} else {
			a.hold(e)
		}
	case refused:
		e.probe()
	case holding:
		e.conflict = nil
		a.lines.Add(slog.LevelInfo, "address conflict resolved: no packet of another host was received", "address", addr)
	}
}
