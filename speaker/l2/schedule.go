package l2

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// step is one announcement of the schedule.
type step struct {
	after time.Duration // since takeover
	form  form
}

// steps are the announcements after a takeover: the second form once, after all addresses of the same
// takeover had the first. After the last step the periodic refresh continues.
var steps = []step{
	{0, asRequest}, {0, asReply}, {50 * time.Millisecond, asRequest}, {200 * time.Millisecond, asRequest},
	{500 * time.Millisecond, asRequest}, {time.Second, asRequest}, {2 * time.Second, asRequest}, {4 * time.Second, asRequest},
}

// An address is probed twice, and then an answer is awaited: 250 ms in all. RFC 5227, 2.1.1, takes five to nine
// seconds, for a host that has just been plugged in: a switch may not forward yet, and other hosts may start at the
// same moment. Here the interface has carried traffic for a while, and an answer takes a millisecond. An address is
// also watched as long as it is held, so a host that was asleep during the probes is found as well. A Service waits
// meanwhile.
var probeGaps = []time.Duration{100 * time.Millisecond, 150 * time.Millisecond}

// A wake later than this is the end of a stall: the process may not have received the answers that came meanwhile.
const overslept = 50 * time.Millisecond

// tick paces the frames: at most burst frames per tick.
const tick = 10 * time.Millisecond

// sender sends frames on one interface.
type sender interface {
	// announce sends one form of announcement and returns how many frames were sent.
	announce(addr netip.Addr, f form) int
	// out is called when the first announcement of an address was sent, with the time since takeover.
	out(after time.Duration)
	// probe reports whether the probe was sent.
	probe(addr netip.Addr) bool
	// probeEnded is called when the probes of an address and the time for an answer are over. It may call the schedule.
	probeEnded(addr netip.Addr)
}

// binding is an address on an interface.
type binding struct {
	on   sender
	addr netip.Addr
}

// job is the next announcement or probe of a binding.
type job struct {
	binding
	probing bool
	start   time.Time // start of the schedule
	step    int
	out     bool // it has been announced
	due     time.Time
	index   int // in the heap, -1 for none
}

// schedule sends announcements and probes for bindings: frequently after takeover, then periodically. Each interface
// has one, which paces its frames.
type schedule struct {
	refresh time.Duration // interval of the periodic announcements; 0 for none
	burst   int
	began   time.Time

	mu   sync.Mutex
	jobs map[binding]*job
	heap jobHeap
	// window is the start of the current tick, sent counts the frames sent in it.
	window time.Time
	sent   int
	wake   chan struct{}
}

func newSchedule(refresh time.Duration, perSecond int) *schedule {
	burst := max(1, int(time.Duration(perSecond)*tick/time.Second))
	return &schedule{
		refresh: refresh, burst: burst, began: time.Now(), jobs: map[binding]*job{}, wake: make(chan struct{}, 1),
	}
}

// announce starts the announcements of bindings, unless they already run. It ends their probes.
func (s *schedule) announce(now time.Time, bindings ...binding) { s.begin(now, bindings, false) }

// probe starts the probes of bindings, unless they already run. It ends their announcements.
func (s *schedule) probe(now time.Time, bindings ...binding) { s.begin(now, bindings, true) }

// begin adds all bindings at once.
func (s *schedule) begin(now time.Time, bindings []binding, probing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begun := false
	for _, p := range bindings {
		if j := s.jobs[p]; j != nil {
			if j.probing == probing {
				continue
			}
			s.remove(j)
		}
		j := &job{binding: p, probing: probing, start: now, due: now}
		s.jobs[p], begun = j, true
		heap.Push(&s.heap, j)
	}
	if !begun {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// stop ends the job of a binding. Once it has returned, nothing more is sent for the binding.
func (s *schedule) stop(p binding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[p]; j != nil {
		s.remove(j)
		delete(s.jobs, p)
	}
}

// remove removes a job from the heap, where its next due time may be far off.
func (s *schedule) remove(j *job) {
	if j.index >= 0 {
		heap.Remove(&s.heap, j.index)
	}
}

// run sends what is due until the context ends.
func (s *schedule) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		now := time.Now()
		wait, ok, ended := s.send(now, !due.IsZero() && now.Sub(due) > overslept)
		if due = (time.Time{}); ok {
			timer.Reset(wait)
			due = now.Add(wait)
		}
		for _, p := range ended {
			p.on.probeEnded(p.addr)
		}
	}
}

// send sends the due frames that fit into this tick. It returns the time until the next one, if there is one, and the
// bindings whose probing is over; after a stall, what would be over is probed again. The lock is held while sending, so
// that stop takes effect before it returns.
func (s *schedule) send(now time.Time, stalled bool) (wait time.Duration, ok bool, ended []binding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.window) >= tick {
		s.window, s.sent = now, 0
	}
	for len(s.heap) > 0 {
		j := s.heap[0]
		switch {
		case j.due.After(now):
			return j.due.Sub(now), true, ended
		case j.probing && j.step == len(probeGaps) && stalled:
			j.step-- // an answer may wait to be received: ask again
		case j.probing && j.step == len(probeGaps):
			heap.Pop(&s.heap)
			delete(s.jobs, j.binding)
			ended = append(ended, j.binding)
		case s.sent >= s.burst:
			return s.window.Add(tick).Sub(now), true, ended
		case j.probing:
			s.sent++
			if j.on.probe(j.addr) {
				j.due = now.Add(probeGaps[j.step])
				j.step++
			} else {
				j.due = now.Add(probeGaps[0]) // nothing was sent, so silence proves nothing
			}
			heap.Fix(&s.heap, 0)
		default:
			n := j.on.announce(j.addr, formAt(j.step))
			if n > 0 && !j.out {
				j.out = true
				j.on.out(time.Since(j.start))
			}
			s.sent += n
			s.next(j, now)
		}
	}
	return 0, false, ended
}

// formAt returns the form of a step; the refresh uses the first one.
func formAt(at int) form {
	if at < len(steps) {
		return steps[at].form
	}
	return asRequest
}

// next moves the job at the heap's top to its next due time. A late job does not catch up in a burst: the next step is
// due no sooner than now.
func (s *schedule) next(j *job, now time.Time) {
	j.step++
	switch {
	case j.step < len(steps):
		j.due = j.start.Add(steps[j.step].after)
		if steps[j.step].after > 0 && j.due.Before(now) {
			j.due = now
		}
	case s.refresh > 0:
		// A quarter of jitter spreads addresses of the same takeover.
		j.due = s.together(now.Add(s.refresh - time.Duration(rand.Int64N(int64(s.refresh/4)+1))))
	default:
		heap.Pop(&s.heap)
		return
	}
	heap.Fix(&s.heap, 0)
}

// together returns the time of the wake, at most a quarter of a second earlier, that all refreshes of about that time
// share.
func (s *schedule) together(due time.Time) time.Time {
	const step = 250 * time.Millisecond
	if s.refresh < 4*step {
		return due
	}
	return s.began.Add(due.Sub(s.began).Truncate(step))
}

// jobHeap orders jobs by due time, and then by step.
type jobHeap []*job

func (h jobHeap) Len() int { return len(h) }
func (h jobHeap) Less(i, k int) bool {
	if !h[i].due.Equal(h[k].due) {
		return h[i].due.Before(h[k].due)
	}
	return h[i].step < h[k].step
}
func (h jobHeap) Swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].index, h[k].index = i, k
}
func (h *jobHeap) Push(x any) {
	j := x.(*job)
	j.index = len(*h)
	*h = append(*h, j)
}
func (h *jobHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1], last.index = nil, -1
	*h = old[:len(old)-1]
	return last
}
