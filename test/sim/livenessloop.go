package sim

import (
	"time"

	"github.com/ironlb/ironlb/speaker/member"
)

// arrive handles a datagram that reaches the node.
func (s *Speaker) arrive(e *event) {
	if !s.power {
		return
	}
	s.Received.add(len(e.data))
	if s.core == nil {
		return
	}
	if s.paused {
		if len(s.waiting) < s.queue {
			s.waiting = append(s.waiting, *e)
		}
		return
	}
	if member.Routine(e.data) && !s.core.Attentive() { // it does not wake the loop
		s.waiting = append(s.waiting, *e)
		return
	}
	s.readWaiting()
	s.read(e)
	switch {
	case s.core.Urgent():
		s.tick()
	case s.core.Changed():
		s.trigger()
		fallthrough
	default:
		s.scheduleTick()
	}
}

// readWaiting reads the datagrams queued in the kernel.
func (s *Speaker) readWaiting() {
	for i := range s.waiting {
		s.read(&s.waiting[i])
	}
	s.waiting, s.lastRead = s.waiting[:0], s.time()
}

func (s *Speaker) read(e *event) {
	start := s.clock()
	age := min(time.Duration(s.cluster.now-e.at), s.time().Sub(s.lastRead)) // while suspended, it is in the network card
	in := member.Packet{Iface: ifaces[e.iface], Source: e.from.addrs[e.iface], OnLink: true, Data: e.data}
	at := s.time().Add(-age)
	drop := s.core.Receive(at, at.Sub(beginning), in)
	s.Cost.Core += s.clock() - start
	if drop != member.Accepted {
		s.Drops[drop]++
	}
}

// tick is one tick of the liveness loop.
func (s *Speaker) tick() {
	c := s.cluster
	s.readWaiting()
	start := s.clock()
	sends := s.core.Tick(s.time(), s.time().Sub(beginning))
	took := s.clock() - start
	s.Cost.Core += took
	s.Cost.LongestTick = max(s.Cost.LongestTick, took)
	c.carry(s, sends)
	s.seesFence()
	s.passReceived()
	if s.core.Changed() {
		s.trigger()
	}
	s.tickAt = 0
	s.scheduleTick()
}

// due returns when a time by the clock of the process comes, now if it is past.
func (s *Speaker) due(at time.Time) int64 {
	return max(s.cluster.now, int64(at.Sub(beginning)+s.behind))
}

// scheduleTick schedules the next tick, unless it is scheduled already.
func (s *Speaker) scheduleTick() {
	c := s.cluster
	// scheduled reports whether there is a tick that is not too late.
	scheduled := func(due int64) bool { return s.tickAt >= c.now && s.tickAt <= due+int64(s.lateness()) }
	if scheduled(s.due(s.core.Earliest())) {
		return
	}
	due := s.due(s.core.Next())
	if scheduled(due) {
		return
	}
	s.tickAt = due + c.random.Int64N(int64(s.lateness()))
	if s.core.Urgent() {
		s.tickAt = c.now
	}
	c.queue.push(event{at: s.tickAt, kind: tick, node: s, boot: s.boot})
}

// lateness is the longest delay of a tick: a timer and the scheduler are late by up to a millisecond, more on a busy
// node.
func (s *Speaker) lateness() time.Duration {
	if s.busy {
		return max(time.Millisecond, s.cluster.config.Busy.Heartbeat)
	}
	return time.Millisecond
}

// seesFence updates the responders' fence.
func (s *Speaker) seesFence() {
	if f := s.core.Fenced(); f != s.fenced {
		s.fenced = f
		s.cluster.Owners.refresh(s)
	}
}
