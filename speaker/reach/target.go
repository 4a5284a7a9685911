package reach

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// target is how a host answers at one address to one witness.
type target struct {
	Target
	// asked are the questions that wait for an answer, the oldest first. next is when to ask again.
	asked []asked
	next  time.Time
	// sent is when the question was asked that was answered last, took the longest time of an answer lately.
	sent time.Time
	took time.Duration
	// settling is set after an answer that was far slower than the ones before, until took says again how long answers
	// take: the next silence would be waited for too long. The end of a cut brings answers to questions that the kernel
	// had kept.
	settling bool
	// works is set while the target answers in general: misses are the questions in a row without an answer while the
	// node's speaker is received, silences those while it is not.
	works            bool
	misses, silences int
	quick            int // how many questions were asked since the last restart
}

// asked is a question; over is set once it counts as unanswered. A regular one is asked to learn whether the target
// answers in general.
type asked struct {
	id            uint64
	at            time.Time
	regular, over bool
}

// answeredSince reports whether a question was answered that was asked just now, and after a time.
func (t *target) answeredSince(now, at time.Time) bool {
	return t.sent.After(at) && now.Sub(t.sent) < justNow+2*t.took
}

// answer takes in the answer to a question that came at that time, and returns the IDs of those questions for which none is waited any more.
func (t *target) answer(now time.Time, id uint64) (done []uint64) {
	for i, a := range t.asked {
		done = append(done, a.id)
		if a.id == id {
			last, before := max(now.Sub(a.at), 0), t.took
			t.took = max(last, before/2)
			t.settling = t.within() > answerWithin && (last < t.took || last > 2*before)
			t.sent, t.works, t.misses, t.silences = a.at, true, 0, 0
			t.asked = t.asked[i+1:]
			return done
		}
	}
	return nil
}

// within is how long an answer may take until its question counts as unanswered.
func (t *target) within() time.Duration { return min(max(answerWithin, 4*t.took), slowest) }

// expire counts what was not answered in time.
func (c *Core) expire(now time.Time, t *target, received bool) {
	for i := range t.asked {
		a := &t.asked[i]
		if a.over || now.Sub(a.at) < t.within() {
			continue
		}
		switch a.over = true; {
		case !received:
			t.silences++
		case a.regular:
			t.misses++
			t.works = t.works && t.misses < learnMost
		}
	}
	for len(t.asked) > 0 && t.asked[0].over && now.Sub(t.asked[0].at) >= slowest {
		delete(c.waiting, t.asked[0].id)
		t.asked = t.asked[1:]
	}
}

// restart makes what was asked before count for nothing, and asks at once.
func (c *Core) restart(now time.Time, targets []*target) {
	for _, t := range targets {
		c.drop(t)
		t.next, t.quick, t.silences = now, 0, 0
	}
	c.next = now
}

// drop gives up the questions of a target.
func (c *Core) drop(t *target) {
	for _, a := range t.asked {
		delete(c.waiting, a.id)
	}
	t.asked = nil
}

// ask returns the questions that are due, and notes when the next Tick is.
func (c *Core) ask(now time.Time) (out []Question) {
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
				every = by * askSlow
			}
			out = c.askTarget(now, t, every, false, out)
		}
	}
	for _, n := range c.nodes {
		if !n.back.IsZero() {
			c.next = earlier(c.next, n.back.Add(holdFor))
		}
		for _, t := range n.targets {
			if every := n.every(now, t, by); every > 0 {
				out = c.askTarget(now, t, every, n.received, out)
			}
		}
	}
	return out
}

// undecided returns since when the latest node is asked that may have to be called unreachable; zero for none.
func (c *Core) undecided() (since time.Time) {
	for _, n := range c.nodes {
		if n.known && !n.received && n.unreachable == nil && !n.answers() && !n.unwitnessed() && n.asking.After(since) {
			since = n.asking
		}
	}
	return since
}

// every is how long after a question the next one to a target of the node is due, 0 for never.
func (n *node) every(now time.Time, t *target, by time.Duration) time.Duration {
	switch {
	case !n.known:
		return 0
	case n.received && (t.misses > 0 || !t.works) && t.misses < learnMost:
		return learnSoon
	case n.received && t.settling:
		return by * askSteady
	case n.received:
		return by * learnEvery
	case !t.works:
		return 0
	case t.By == plan.WitnessNeighbor && t.quick >= askFirst && n.unreachable == nil && n.echoes():
		return 0 // one witness is enough while it answers
	case n.unreachable != nil && n.back.IsZero() || now.Sub(n.asking) > steadyFor:
		return by * askSlow
	}
	return t.soon(by)
}

// echoes reports whether the node answers ICMP echo since it is asked, and is not silent since.
func (n *node) echoes() bool {
	return slices.ContainsFunc(n.targets, func(t *target) bool {
		return t.By == plan.WitnessEcho && t.works && t.silences == 0 && !t.sent.Before(n.asking)
	})
}

// soon is the pause between questions that decide.
func (t *target) soon(by time.Duration) time.Duration {
	if t.quick < askFirst {
		return askSoon
	}
	return by * askSteady
}

// askTarget adds a question if it is due; a regular one shows whether the target answers in general.
func (c *Core) askTarget(now time.Time, t *target, every time.Duration, regular bool, out []Question) []Question {
	// A pause that has become shorter counts at once, a longer one from the next question on.
	if t.next = earlier(t.next, now.Add(every)); !t.next.After(now) {
		c.lastID++
		out = append(out, Question{Target: t.Target, ID: c.lastID})
		t.asked = append(t.asked, asked{id: c.lastID, at: now, regular: regular})
		c.waiting[c.lastID] = t
		t.quick++
		if t.next = now.Add(every); every >= learnEvery {
			t.next = c.slot(now, t, every)
		}
	}
	c.next = earlier(c.next, t.next)
	for _, a := range t.asked {
		if !a.over {
			c.next = earlier(c.next, a.at.Add(t.within()))
		}
	}
	return out
}

// slot returns when the next regular question to a target is due. They are spread over the period, whole seconds apart, so
// that one Tick asks all that are due in a second.
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
