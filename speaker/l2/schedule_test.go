package l2

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// recorder records what was sent, and when.
type recorder struct {
	begin   time.Time
	times   map[netip.Addr][]time.Duration
	replies int
	all     []time.Duration
	order   []netip.Addr
	probes  map[netip.Addr][]time.Duration
	ended   map[netip.Addr]time.Duration
	outs    []time.Duration
	full    bool // the kernel accepts nothing
	// stall is for how long the process stands still after its second probe.
	stall time.Duration
}

func newRecorder() *recorder {
	return &recorder{begin: time.Now(), times: map[netip.Addr][]time.Duration{}, probes: map[netip.Addr][]time.Duration{},
		ended: map[netip.Addr]time.Duration{}}
}

func (r *recorder) announce(addr netip.Addr, f form) int {
	if r.full {
		return 0
	}
	at := time.Since(r.begin)
	r.all = append(r.all, at)
	if f == asReply {
		r.replies++
		return 1
	}
	r.times[addr] = append(r.times[addr], at)
	r.order = append(r.order, addr)
	return 1
}

func (r *recorder) out(after time.Duration) { r.outs = append(r.outs, after) }

func (r *recorder) probe(addr netip.Addr) bool {
	if r.full {
		return false
	}
	r.all = append(r.all, time.Since(r.begin))
	r.probes[addr] = append(r.probes[addr], time.Since(r.begin))
	if len(r.probes[addr]) == 2 {
		time.Sleep(r.stall)
	}
	return true
}

func (r *recorder) probeEnded(addr netip.Addr) { r.ended[addr] = time.Since(r.begin) }

// running runs a schedule in the test's bubble.
func running(t *testing.T, s *schedule) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
}

// elapse advances time; after that nothing runs, so that the recorder can be read.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestScheduleOfOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := newSchedule(100*time.Second, 5000)
		running(t, s)
		s.announce(time.Now(), binding{rec, vip})
		elapse(10 * time.Second)
		s.announce(time.Now(), binding{rec, vip}) // a resync: no burst
		synctest.Wait()
		want := []time.Duration{0, 50 * ms, 200 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms}
		s.mu.Lock() // held while sending
		if !slices.Equal(rec.times[vip], want) || rec.replies != 1 {
			t.Errorf("announced at %v, %d times as a reply; want %v, once", rec.times[vip], rec.replies, want)
		}
		s.mu.Unlock()
		elapse(1000 * time.Second)
		s.mu.Lock()
		if n := len(rec.times[vip]) - len(want); n < 10 || n > 14 {
			t.Errorf("%d refreshes in 1,000 s, want one each 75 to 100 s", n)
		}
		before := len(rec.all)
		s.mu.Unlock()
		s.stop(binding{rec, vip})
		elapse(1000 * time.Second)
		if len(rec.all) != before {
			t.Error("announced after stop")
		}
	})
}

// The delay of the first announcement is reported once per address, even if it waited for its tick, or the kernel did
// not accept it at once.
func TestScheduleReportsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := newSchedule(time.Minute, 5000)
		running(t, s)
		s.probe(time.Now(), binding{rec, vip})
		elapse(time.Second)
		if len(rec.outs) > 0 {
			t.Errorf("reported %v for probes", rec.outs)
		}
		s.announce(time.Now(), binding{rec, vip})
		elapse(time.Hour)
		s.announce(time.Now(), binding{rec, vip}) // a resync
		elapse(time.Hour)
		if !slices.Equal(rec.outs, []time.Duration{0}) {
			t.Errorf("reported %v for one address", rec.outs)
		}
		rec.outs = nil
		s.announce(time.Now(), places(rec, addrsFrom("198.51.100.0", 100))...)
		elapse(time.Hour)
		slices.Sort(rec.outs)
		if n := len(rec.outs); n != 100 || rec.outs[0] != 0 || rec.outs[99] != tick {
			t.Errorf("reported %v for a hundred, want half of them at the next tick", rec.outs)
		}
		rec.outs, rec.full = nil, true
		s.stop(binding{rec, vip})
		s.announce(time.Now(), binding{rec, vip})
		elapse(time.Second)
		s.mu.Lock() // held while sending
		rec.full = false
		s.mu.Unlock()
		elapse(time.Minute)
		if !slices.Equal(rec.outs, []time.Duration{2 * time.Second}) {
			t.Errorf("reported %v for frames accepted after a second", rec.outs)
		}
	})
}

func TestScheduleWithoutRefreshEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := newSchedule(0, 5000)
		running(t, s)
		s.announce(time.Now(), binding{rec, vip})
		elapse(time.Hour)
		if len(rec.all) != len(steps) {
			t.Errorf("announced %d times, want %d", len(rec.all), len(steps))
		}
	})
}

// Many addresses at once are paced, each is announced once before any is announced a second time, and none is lost.
func TestScheduleIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		addrs := addrsFrom("203.0.113.0", 2000)
		s := newSchedule(0, 5000)
		running(t, s)
		s.announce(time.Now(), places(rec, addrs)...)
		elapse(time.Minute)
		if len(rec.all) != len(steps)*len(addrs) {
			t.Fatalf("%d announcements, want %d", len(rec.all), len(steps)*len(addrs))
		}
		if last := rec.all[len(addrs)-1]; last > 400*ms {
			t.Errorf("the last one was announced after %v, want 400 ms at 5,000 a second", last)
		}
		seen := map[netip.Addr]bool{}
		for _, a := range rec.order[:len(addrs)] {
			seen[a] = true
		}
		if len(seen) != len(addrs) {
			t.Errorf("%d of %d addresses are in the first round", len(seen), len(addrs))
		}
		wantPaced(t, rec.all, 50)
	})
}

func places(on sender, addrs []netip.Addr) (out []binding) {
	for _, a := range addrs {
		out = append(out, binding{on, a})
	}
	return out
}

func wantPaced(t *testing.T, all []time.Duration, limit int) {
	t.Helper()
	perTick := map[time.Duration]int{}
	for _, at := range all {
		perTick[at.Truncate(tick)]++
	}
	for at, n := range perTick {
		if n > limit {
			t.Errorf("%d frames in the tick at %v, want at most %d", n, at, limit)
		}
	}
}

func TestScheduleProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := newSchedule(0, 5000)
		running(t, s)
		s.probe(time.Now(), binding{rec, vip})
		s.probe(time.Now(), binding{rec, host})
		elapse(120 * ms)
		s.stop(binding{rec, host})
		s.probe(time.Now(), binding{rec, vip}) // again: no change
		elapse(time.Minute)
		if want := []time.Duration{0, 100 * ms}; !slices.Equal(rec.probes[vip], want) || rec.ended[vip] != 250*ms {
			t.Errorf("probed at %v until %v, want %v until 250 ms", rec.probes[vip], rec.ended[vip], want)
		}
		if _, ended := rec.ended[host]; ended {
			t.Error("reported the end of a stopped probe")
		}
		// An announcement of a probed address ends its probes.
		s.probe(time.Now(), binding{rec, vip})
		s.announce(time.Now(), binding{rec, vip})
		before := rec.ended[vip]
		elapse(time.Minute)
		if len(rec.probes[vip]) > 3 || rec.ended[vip] != before || len(rec.times[vip]) != len(steps)-1 {
			t.Errorf("%d probes, ended at %v, %d announcements", len(rec.probes[vip]), rec.ended[vip], len(rec.times[vip]))
		}
	})
}

// A probe that the kernel did not accept, or that a stalled process must not send, does not count.
func TestScheduleProbesAgainWhatWasNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		rec.full = true
		s := newSchedule(0, 5000)
		running(t, s)
		s.probe(time.Now(), binding{rec, vip})
		elapse(time.Minute)
		if at, ended := rec.ended[vip]; ended {
			t.Errorf("probing is over after %v, and no probe was sent", at)
		}
		s.mu.Lock() // held while sending
		rec.full = false
		s.mu.Unlock()
		elapse(time.Minute)
		if at := rec.probes[vip]; len(at) != 2 || rec.ended[vip] != at[1]+150*ms {
			t.Errorf("probed at %v until %v", at, rec.ended[vip])
		}
	})
}

// After a stall the schedule may run before the receiver: the time for an answer begins anew.
func TestScheduleProbesAgainAfterAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		rec.stall = time.Second
		s := newSchedule(0, 5000)
		running(t, s)
		s.probe(time.Now(), binding{rec, vip})
		elapse(time.Minute)
		if at := rec.probes[vip]; len(at) != 3 || rec.ended[vip] != at[2]+150*ms {
			t.Errorf("probed at %v until %v, with a stall in between", at, rec.ended[vip])
		}
	})
}

// The time for an answer begins with the probe, however long that was paced.
func TestScheduleProbesManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := newSchedule(0, 5000)
		running(t, s)
		addrs := addrsFrom("203.0.113.0", 2000)
		s.probe(time.Now(), places(rec, addrs)...)
		elapse(time.Minute)
		wantPaced(t, rec.all, 50)
		for _, a := range addrs {
			at := rec.probes[a]
			if len(at) != 2 || at[1] < at[0]+100*ms || rec.ended[a] < at[1]+150*ms || rec.ended[a] > 1200*ms {
				t.Fatalf("%v: probed at %v until %v", a, at, rec.ended[a])
			}
		}
	})
}

// A job that is restarted repeatedly, as for a node on an unstable link, is kept once.
func TestScheduleRemovesWhatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		addrs := addrsFrom("203.0.113.0", 100)
		s := newSchedule(time.Hour, 5000)
		running(t, s)
		for range 100 {
			for _, at := range places(rec, addrs) {
				s.stop(at)
				s.announce(time.Now(), at)
			}
			elapse(5 * time.Second)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.heap) != len(addrs) || len(rec.times[addrs[7]]) != 100*7 {
			t.Errorf("%d jobs for %d addresses; one was announced %d times", len(s.heap), len(addrs), len(rec.times[addrs[7]]))
		}
	})
}
