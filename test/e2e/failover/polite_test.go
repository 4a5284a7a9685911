package failover

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab"
)

// TestPoliteStop: a speaker that is told to end hands over; TestDrain: so does a node that load balancers are to leave. Each move
// under a client that makes two hundred connections a second to each address, none of which may fail but for one whose handshake the move
// cuts in two, which happens in one of some hundred moves.
func TestPoliteStop(t *testing.T) {
	s := serving(t, 1)
	s.handOvers(func(ctx context.Context, n *lab.Node) error { return n.StopSpeaker() },
		func(ctx context.Context, n *lab.Node) error { return n.StartSpeaker(ctx, "--config", speakerConfig()) })
}

// TestDrain: see TestPoliteStop.
func TestDrain(t *testing.T) {
	s := serving(t, 1)
	s.handOvers(func(ctx context.Context, n *lab.Node) error { return n.Exclude(ctx) },
		func(ctx context.Context, n *lab.Node) error { return n.Include(ctx) })
}

// TestReplaced: speakers that are replaced one after the other, as by an upgrade, move nothing, and no connection fails.
func TestReplaced(t *testing.T) {
	s := serving(t, 1)
	v := s.vips[0]
	holder := s.settled("at the start")[v.service]
	stop := s.client(v)
	began := time.Now()
	for range max(1, *moves/3) {
		for _, n := range cluster.Nodes[:candidates] {
			if err := n.ReplaceSpeaker(); err != nil {
				t.Fatal(err)
			}
			if err := n.StartSpeaker(context.WithoutCancel(t.Context()), "--config", speakerConfig()); err != nil {
				t.Fatal(err)
			}
			if now := s.settled("after the return of " + n.Name)[v.service]; now != holder && len(s.starved()) == 0 {
				t.Fatalf("it went from %s to %s", holder.Name, now.Name)
			}
		}
	}
	for i, r := range stop(began) {
		a := v.addrs[i]
		t.Logf("%v: %s", a, r)
		seen := s.seen(a, began, time.Now())
		if (r.Failed > 0 || seen.Moves() != 0) && len(s.starved()) == 0 {
			t.Errorf("%v: %d of %d connections failed, answered by %v", a, r.Failed, r.Tried, names(seen.MACs))
		}
	}
}

// handOvers has the only VirtualIP move so often as asked for.
func (s *scene) handOvers(leave, back func(context.Context, *lab.Node) error) {
	s.t.Helper()
	v := s.vips[0]
	holder := s.settled("at the start")[v.service]
	stop := s.client(v)
	began := time.Now()
	overlaps := 0
	for range *moves {
		since := time.Now()
		if err := leave(s.t.Context(), holder); err != nil {
			s.t.Fatal(err)
		}
		next := s.leaves(holder)[v.service]
		returned := time.Now()
		if err := back(context.WithoutCancel(s.t.Context()), holder); err != nil {
			s.t.Fatal(err)
		}
		if now := s.settled("after the return")[v.service]; now != next && len(s.starved()) > 0 {
			next = now
		} else if now != next {
			s.t.Errorf("%s took it back from %s", now.Name, next.Name)
			next = now
		}
		for _, a := range v.addrs {
			seen := s.seen(a, since.Add(-time.Second), returned)
			if overlaps += seen.Duplicates; (seen.Moves() != 1 || seen.Duplicates > overlap) && len(s.starved()) == 0 {
				s.t.Errorf("%v was answered by one after the other, %v, and %d questions by both", a, names(seen.MACs), seen.Duplicates)
			}
		}
		holder = next
	}
	for i, r := range stop(began) {
		s.t.Logf("%d moves, %v: %s", *moves, v.addrs[i], r)
		// One that the old owner answered and whose acknowledgement came to the new one was under way: that one does not know it.
		underWay := min(r.Failures[unix.ECONNRESET.Error()], 1+*moves/100)
		if r.Failed > underWay && len(s.starved()) == 0 {
			s.t.Errorf("%v: %d of %d connections failed in %d moves", v.addrs[i], r.Failed, r.Tried, *moves)
		}
	}
	// The successor answers before the other one stops (announce.md L2.6).
	s.t.Logf("%d questions were asked while both answered", overlaps)
}
