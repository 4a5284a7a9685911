package l2

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// steps are the times after taking over at which an address is announced; the first one in both forms, the others as
// requests (wire.md 2.2). After the last one the slow refresh goes on.
var steps = []time.Duration{
	0, 50 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second,
}

// tick and burst pace the announcements: at most burst of them in a tick.
const tick = 10 * time.Millisecond

// station sends frames on one interface.
type station interface {
	// announce sends gratuitous ARP for the address, in both forms or as a request.
	announce(addr netip.Addr, both bool)
}

// place is an address on an interface.
type place struct {
	on   station
	addr netip.Addr
}

// job is the next announcement of a place.
type job struct {
	place
	start time.Time // of the schedule
	step  int
	due   time.Time
	gone  bool
}

// schedule sends gratuitous ARP for places: often after they were taken over, then seldom.
type schedule struct {
	refresh time.Duration // between two announcements in the long run; 0 for none
	burst   int

	mu   sync.Mutex
	jobs map[place]*job
	heap jobHeap
	// window is the start of the current tick, sent is what was sent in it.
	window time.Time
	sent   int
	wake   chan struct{}
}

func newSchedule(refresh time.Duration, perSecond int) *schedule {
	burst := max(1, int(time.Duration(perSecond)*tick/time.Second))
	return &schedule{refresh: refresh, burst: burst, jobs: map[place]*job{}, wake: make(chan struct{}, 1)}
}

// start begins the schedule of a place unless it already runs.
func (s *schedule) start(p place, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[p] != nil {
		return
	}
	j := &job{place: p, start: now, due: now}
	s.jobs[p] = j
	heap.Push(&s.heap, j)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// stop ends it. After it returned the place is not announced again.
func (s *schedule) stop(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[p]; j != nil {
		j.gone = true
		delete(s.jobs, p)
	}
}

// run announces what is due until the context ends.
func (s *schedule) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		if wait, ok := s.send(time.Now()); ok {
			timer.Reset(wait)
		}
	}
}

// send announces what is due and fits into this tick, and returns how long to wait for the next, if there is
// one. The lock is held while sending, so that stop keeps its promise.
func (s *schedule) send(now time.Time) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.window) >= tick {
		s.window, s.sent = now, 0
	}
	for len(s.heap) > 0 {
		j := s.heap[0]
		switch {
		case j.gone:
			heap.Pop(&s.heap)
		case j.due.After(now):
			return j.due.Sub(now), true
		case s.sent == s.burst:
			return s.window.Add(tick).Sub(now), true
		default:
			s.sent++
			j.on.announce(j.addr, j.step == 0)
			s.next(j, now)
		}
	}
	return 0, false
}

// next puts the job of the heap's top off to its next time. A job that comes late does not catch up by a burst: the
// next step is due no sooner than now.
func (s *schedule) next(j *job, now time.Time) {
	j.step++
	switch {
	case j.step < len(steps):
		j.due = j.start.Add(steps[j.step])
		if j.due.Before(now) {
			j.due = now
		}
	case s.refresh > 0:
		// A quarter of jitter spreads addresses that were taken over together.
		j.due = now.Add(s.refresh - time.Duration(rand.Int64N(int64(s.refresh/4)+1)))
	default:
		heap.Pop(&s.heap)
		return
	}
	heap.Fix(&s.heap, 0)
}

// jobHeap orders jobs by their time, the fresh ones first.
type jobHeap []*job

func (h jobHeap) Len() int { return len(h) }
func (h jobHeap) Less(i, k int) bool {
	if h[i].due.Equal(h[k].due) {
		return h[i].step < h[k].step
	}
	return h[i].due.Before(h[k].due)
}
func (h jobHeap) Swap(i, k int) { h[i], h[k] = h[k], h[i] }
func (h *jobHeap) Push(x any)   { *h = append(*h, x.(*job)) }
func (h *jobHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
