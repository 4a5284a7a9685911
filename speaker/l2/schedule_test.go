package l2

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// recorder notes when it was told to announce what.
type recorder struct {
	begin time.Time
	times map[netip.Addr][]time.Duration
	both  int
	all   []time.Duration
}

func newRecorder() *recorder {
	return &recorder{begin: time.Now(), times: map[netip.Addr][]time.Duration{}}
}

func (r *recorder) announce(addr netip.Addr, both bool) {
	at := time.Since(r.begin)
	r.times[addr] = append(r.times[addr], at)
	r.all = append(r.all, at)
	if both {
		r.both++
	}
}

func running(t *testing.T, s *schedule) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
}

func TestScheduleOfOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := newSchedule(100*time.Second, 5000)
		running(t, s)
		s.start(place{rec, vip}, time.Now())
		time.Sleep(10 * time.Second)
		s.start(place{rec, vip}, time.Now()) // a resync: no burst
		synctest.Wait()
		s.mu.Lock() // held while announcing
		ms := time.Millisecond
		want := []time.Duration{0, 50 * ms, 200 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms}
		if !slices.Equal(rec.times[vip], want) || rec.both != 1 {
			t.Errorf("announced at %v, %d times in both forms; want %v, once", rec.times[vip], rec.both, want)
		}
		s.mu.Unlock()
		time.Sleep(1000 * time.Second)
		synctest.Wait()
		s.mu.Lock()
		if n := len(rec.times[vip]) - len(want); n < 10 || n > 14 {
			t.Errorf("%d refreshes in 1,000 s, want one each 75 to 100 s", n)
		}
		before := len(rec.all)
		s.mu.Unlock()
		s.stop(place{rec, vip})
		time.Sleep(1000 * time.Second)
		synctest.Wait()
		if len(rec.all) != before {
			t.Error("announced after stop")
		}
	})
}

func TestScheduleWithoutRefreshEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := newSchedule(0, 5000)
		running(t, s)
		s.start(place{rec, vip}, time.Now())
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(rec.all) != len(steps) {
			t.Errorf("announced %d times, want %d", len(rec.all), len(steps))
		}
	})
}

// Many addresses at once are paced, each is announced for the first time before any is a second time, and none is lost.
func TestScheduleIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := newSchedule(0, 5000)
		running(t, s)
		addrs := addrsFrom("203.0.113.0", 2000)
		for _, a := range addrs {
			s.start(place{rec, a}, time.Now())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(rec.all) != len(steps)*len(addrs) {
			t.Fatalf("%d announcements, want %d", len(rec.all), len(steps)*len(addrs))
		}
		perTick := map[time.Duration]int{}
		for _, at := range rec.all {
			perTick[at.Truncate(tick)]++
		}
		for at, n := range perTick {
			if n > 50 {
				t.Errorf("%d announcements in the tick at %v, want at most 50", n, at)
			}
		}
	})
}
