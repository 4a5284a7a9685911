package reach

import (
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// target is the state of one address of a host with one witness.
type target struct {
	Target
	// pending are the pending probes, oldest first. next is when the next one is due.
	pending []pendingProbe
	next    time.Time
	// sent is the send time of the probe that was answered last; took is the longest recent answer time.
	sent time.Time
	took time.Duration
	// settling is set after an answer that was far slower than the ones before, until took is the usual answer time
	// again: otherwise the next silence would be waited for too long. The end of a cut delivers answers to probes that
	// the kernel had queued.
	settling bool
	// works is set while the target answers in general. misses counts consecutive unanswered probes while the node's
	// speaker is received, silences those while it is not.
	works            bool
	misses, silences int
	quick            int // number of probes since the last restart
}

// pendingProbe is a probe; over is set once it counts as unanswered. A regular one checks whether the target answers in
// general.
type pendingProbe struct {
	id            uint64
	at            time.Time
	regular, over bool
}

// answeredSince reports whether a recent probe that was sent after at was answered.
func (t *target) answeredSince(now, at time.Time) bool {
	return t.sent.After(at) && now.Sub(t.sent) < recent+2*t.took
}

// answer records an answer, and returns the IDs of the probes that are no longer pending.
func (t *target) answer(now time.Time, id uint64) (done []uint64) {
	for i, a := range t.pending {
		done = append(done, a.id)
		if a.id == id {
			last, before := max(now.Sub(a.at), 0), t.took
			t.took = max(last, before/2)
			t.settling = t.within() > answerWithin && (last < t.took || last > 2*before)
			t.sent, t.works, t.misses, t.silences = a.at, true, 0, 0
			t.pending = t.pending[i+1:]
			return done
		}
	}
	return nil
}

// within is the answer time after which a probe counts as unanswered.
func (t *target) within() time.Duration { return min(max(answerWithin, 4*t.took), slowest) }

// expire counts the probes that were not answered in time.
func (c *Core) expire(now time.Time, t *target, received bool) {
	for i := range t.pending {
		a := &t.pending[i]
		if a.over || now.Sub(a.at) < t.within() {
			continue
		}
		switch a.over = true; {
		case !received:
			t.silences++
		case a.regular:
			t.misses++
			t.works = t.works && t.misses < maxMisses
		}
	}
	for len(t.pending) > 0 && t.pending[0].over && now.Sub(t.pending[0].at) >= slowest {
		delete(c.pending, t.pending[0].id)
		t.pending = t.pending[1:]
	}
}

// restart discards earlier probes, and makes the next ones due at once.
func (c *Core) restart(now time.Time, targets []*target) {
	for _, t := range targets {
		c.drop(t)
		t.next, t.quick, t.silences = now, 0, 0
	}
	c.next = now
}

// drop discards the pending probes of a target.
func (c *Core) drop(t *target) {
	for _, a := range t.pending {
		delete(c.pending, a.id)
	}
	t.pending = nil
}

// dueProbes returns the probes that are due, and sets the time of the next Tick.
func (c *Core) dueProbes(now time.Time) (out []Probe) {
	c.next = now.Add(time.Minute)
	by := time.Duration(1 + max(0, len(c.nodes)-1)/unstretched)
	if since := c.undecided(); !since.IsZero() {
		hosts := slices.Clone(c.gateways)
		for _, n := range c.helpers() {
			hosts = append(hosts, n.targets...)
		}
		for _, t := range hosts {
			every := t.soon(by)
			if now.Sub(since) > steadyFor {
				every = by * slowInterval
			}
			out = c.probeTarget(now, t, every, false, out)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.segments)) {
		for _, t := range c.segments[name].hosts {
			every := recheckInterval
			if t.quick < firstProbes || t.silences > 0 && t.silences < firstProbes {
				every = fastInterval
			}
			out = c.probeTarget(now, t, every, false, out)
		}
	}
	for _, n := range c.nodes {
		for _, t := range n.targets {
			if every := n.every(now, t, by); every > 0 {
				out = c.probeTarget(now, t, every, n.received, out)
			}
		}
	}
	return out
}

// undecided returns since when the most recently lost node that may become unreachable is probed; zero if there is
// none.
func (c *Core) undecided() (since time.Time) {
	for _, n := range c.nodes {
		if n.known && !n.received && n.unreachable == nil && !n.answers() && !n.unwitnessed() && n.probingSince.After(since) {
			since = n.probingSince
		}
	}
	return since
}

// every returns the interval between probes of a target of the node, 0 for none.
func (n *node) every(now time.Time, t *target, by time.Duration) time.Duration {
	switch {
	case !n.known:
		return 0
	case n.received && (t.misses > 0 || !t.works) && t.misses < maxMisses:
		return recheckInterval
	case n.received && t.settling:
		return by * steadyInterval
	case n.received:
		return by * checkInterval
	case !t.works:
		return 0
	case t.By == view.WitnessNeighbor && t.quick >= firstProbes && n.unreachable == nil && n.echoes():
		return 0 // one witness is enough while it answers
	case n.unreachable != nil || now.Sub(n.probingSince) > steadyFor:
		return by * slowInterval
	}
	return t.soon(by)
}

// echoes reports whether the node has answered ICMP echo since probingSince, and is not silent since.
func (n *node) echoes() bool {
	return slices.ContainsFunc(n.targets, func(t *target) bool {
		return t.By == view.WitnessEcho && t.works && t.silences == 0 && !t.sent.Before(n.probingSince)
	})
}

// soon returns the interval between probes whose answers decide on reachability.
func (t *target) soon(by time.Duration) time.Duration {
	if t.quick < firstProbes {
		return fastInterval
	}
	return by * steadyInterval
}

// probeTarget adds a probe if it is due; a regular one checks whether the target answers in general.
func (c *Core) probeTarget(now time.Time, t *target, every time.Duration, regular bool, out []Probe) []Probe {
	// A shorter interval takes effect at once, a longer one after the next probe.
	if t.next = earlier(t.next, now.Add(every)); !t.next.After(now) {
		c.lastID++
		out = append(out, Probe{Target: t.Target, ID: c.lastID})
		t.pending = append(t.pending, pendingProbe{id: c.lastID, at: now, regular: regular})
		c.pending[c.lastID] = t
		t.quick++
		if t.next = now.Add(every); every >= checkInterval {
			t.next = c.slot(now, t, every)
		}
	}
	c.next = earlier(c.next, t.next)
	for _, a := range t.pending {
		if !a.over {
			c.next = earlier(c.next, a.at.Add(t.within()))
		}
	}
	return out
}

// slot returns when the next regular probe of a target is due. Regular probes are spread over the period, full seconds
// apart, so that one Tick sends all that are due in a second.
func (c *Core) slot(now time.Time, t *target, period time.Duration) time.Time {
	h := fnv.New32a()
	h.Write(t.Addr.AsSlice())
	slot := time.Duration(h.Sum32()%uint32(period/time.Second)) * time.Second
	next := c.began.Add(now.Sub(c.began).Truncate(period) + slot)
	if !next.After(now) {
		next = next.Add(period)
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
