package member

import (
	"testing"
	"time"
)

// The kernel's time of arrival counts only within the time since the socket was empty, and not across a step of the
// clock.
func TestArrivalTime(t *testing.T) {
	now := time.Now()
	s := &socket{emptied: now.Add(-90 * time.Millisecond), stamped: true}
	stamp := func(ago time.Duration) int64 { return now.Add(-ago).UnixNano() }
	for _, c := range []struct {
		stamp int64
		want  time.Duration
	}{
		{stamp(40 * time.Millisecond), 40 * time.Millisecond},
		{stamp(90 * time.Millisecond), 90 * time.Millisecond},
		{stamp(time.Hour), 90 * time.Millisecond},
		{stamp(-time.Hour), 0},
		{0, 0},
	} {
		if got := s.age(c.stamp, now); got != c.want {
			t.Errorf("age %v, want %v", got, c.want)
		}
	}
	s.stamped = false
	if got := s.age(stamp(40*time.Millisecond), now); got != 0 {
		t.Errorf("age %v after a step of the clock", got)
	}
	start := now.Add(-time.Minute)
	k := &intake{}
	for i, c := range []struct {
		start, now time.Time
		want       bool
	}{
		{start, now, true}, // the first one
		{start, now.Add(100 * time.Millisecond), false},
		{start.Add(-2 * time.Millisecond), now.Add(200 * time.Millisecond), true}, // the monotonic clock against it
		{start.Add(-2 * time.Millisecond), now.Add(300 * time.Millisecond), false},
	} {
		if got := k.stepped(c.start, c.now); got != c.want {
			t.Errorf("step %d: stepped %t", i, got)
		}
	}
}

// While datagrams flood a socket, none waits.
func TestBusyIntake(t *testing.T) {
	now := time.Now()
	s := &socket{room: 400}
	k := &intake{since: now}
	read := func(n int, busy bool) {
		t.Helper()
		now = now.Add(100 * time.Millisecond)
		if k.add(now, s, n); k.busy != busy {
			t.Errorf("busy %t after %d datagrams", k.busy, n)
		}
	}
	for range 25 {
		read(100, false)
	}
	read(101, true)
	for range 9 {
		read(10, true)
	}
	read(10, false)
	s.room = 1 << 20
	for range 10 {
		now = now.Add(100 * time.Millisecond)
		k.add(now, s, 2*maxRate/10)
	}
	if !k.busy {
		t.Errorf("not busy at %d datagrams per second", 2*maxRate)
	}
}
