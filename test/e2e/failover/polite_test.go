package failover

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// TestPoliteStop: a stopped speaker hands over. TestDrain: so does a node excluded from load balancers. During each
// move a client opens two hundred connections a second to each address. None may fail, except one whose handshake spans
// the move, which happens in one of some hundred moves.
func TestPoliteStop(t *testing.T) {
	s, before := serving(t, 1)
	s.handOvers(before, func(ctx context.Context, n *lab.Node) error { return n.StopSpeaker() },
		func(ctx context.Context, n *lab.Node) error { return n.StartSpeaker(ctx, "--config", speakerConfig()) })
}

// TestDrain: see TestPoliteStop.
func TestDrain(t *testing.T) {
	s, before := serving(t, 1)
	s.handOvers(before, func(ctx context.Context, n *lab.Node) error { return n.Exclude(ctx) },
		func(ctx context.Context, n *lab.Node) error { return n.Include(ctx) })
}

// TestReplaced: speakers replaced one after the other, as by an upgrade, move nothing, no new connection fails, and no
// open one breaks. With -candidates 5 -pull 60s it is a rollout over five nodes that pull an image.
func TestReplaced(t *testing.T) {
	s, now := serving(t, candidates)
	check := s.undisturbed()
	for range max(1, *moves/3) {
		for _, n := range cluster.Nodes[:candidates] {
			now = s.replace(now, n, *pull)
		}
	}
	check()
}

// TestReplacedLate: the next speaker starts late, as after an image pull.
func TestReplacedLate(t *testing.T) {
	rare.Test(t)
	s, before := serving(t, 1)
	holder := before[s.vips[0].service]
	check := s.undisturbed()
	s.replace(before, holder, 20*time.Second)
	check()
}

// TestDiesAway: a node that loses its power while its speaker is replaced is detected within seconds.
func TestDiesAway(t *testing.T) {
	rare.Test(t)
	s, before := serving(t, 1)
	holder := before[s.vips[0].service]
	if err := holder.ReplaceSpeaker(); err != nil {
		t.Fatal(err)
	}
	if now := s.settledFor(8*time.Second, "while it is replaced")[s.vips[0].service]; now != holder {
		t.Fatalf("it went from %s to %s", holder.Name, now.Name)
	}
	began := time.Now()
	if err := holder.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := holder.PowerOn(ctx); err != nil {
			t.Error(err)
		} else if err := holder.StartSpeaker(ctx, "--config", speakerConfig()); err != nil {
			t.Error(err)
		}
		s.settledFor(watch, "after the return")
	})
	s.leaves(holder)
	took := time.Since(began)
	t.Logf("answered again within %v", took)
	if took > 20*time.Second && len(s.starved()) == 0 { // it had requested two minutes for its restart
		t.Errorf("it was missed after %v", took)
	}
}

// replace ends a speaker as a kubelet does, and starts the next one after a while. Nothing moves. It returns the
// owners.
func (s *scene) replace(before owners, n *lab.Node, pull time.Duration) owners {
	s.t.Helper()
	if err := n.ReplaceSpeaker(); err != nil {
		s.t.Fatal(err)
	}
	if pull > 0 {
		s.settledFor(pull, "while an image is pulled on "+n.Name)
	}
	if err := n.StartSpeaker(context.WithoutCancel(s.t.Context()), "--config", speakerConfig()); err != nil {
		s.t.Fatal(err)
	}
	now := s.settled("after the return of " + n.Name)
	for _, v := range s.vips {
		if now[v.service] != before[v.service] && len(s.starved()) == 0 {
			s.t.Fatalf("%s went from %s to %s", v.service, before[v.service].Name, now[v.service].Name)
		}
	}
	return now
}

// undisturbed starts clients of the first VirtualIP, and keeps a connection to each address open. The returned function
// stops them and fails the test if one of them failed, or an address moved.
func (s *scene) undisturbed() (check func()) {
	s.t.Helper()
	streams := map[netip.Addr]*lab.Prober{}
	for _, v := range s.vips {
		for _, a := range v.addrs {
			p, err := cluster.Client.StartProbe(s.t.Context(), lab.Probe{
				Network: "stream", Target: netip.AddrPortFrom(a, tcpPort), Every: 200 * time.Millisecond, Timeout: 5 * time.Second,
			})
			if err != nil {
				s.t.Fatal(err)
			}
			if err := p.WaitAnswers(s.t.Context(), patience, 3); err != nil {
				s.t.Fatal(err)
			}
			streams[a] = p
		}
	}
	stop := s.client(s.vips[0])
	began := time.Now()
	return func() {
		s.t.Helper()
		for i, r := range stop(began) {
			s.t.Logf("%v: %s", s.vips[0].addrs[i], r)
			if r.Failed > 0 && len(s.starved()) == 0 {
				s.t.Errorf("%v: %d of %d connections failed", s.vips[0].addrs[i], r.Failed, r.Tried)
			}
		}
		for a, p := range streams {
			if err := p.Broken(); err != nil {
				s.t.Errorf("%v: the open connection broke: %v", a, err)
			} else if _, err := p.Stop(); err != nil {
				s.t.Error(err)
			}
			if seen := s.seen(a, began, time.Now()); seen.Moves() != 0 && len(s.starved()) == 0 {
				s.t.Errorf("%v was answered by %v", a, names(seen.MACs))
			}
		}
		s.t.Logf("%d open connections kept", len(streams))
	}
}

// handOvers moves the only VirtualIP as often as -moves requires.
func (s *scene) handOvers(before owners, leave, back func(context.Context, *lab.Node) error) {
	s.t.Helper()
	v := s.vips[0]
	holder := before[v.service]
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
		// The handshake spans the move: the old owner sent the SYN-ACK and the new owner, which has no state for it,
		// received the ACK.
		underWay := min(r.Failures[unix.ECONNRESET.Error()], 1+*moves/100)
		if r.Failed > underWay && len(s.starved()) == 0 {
			s.t.Errorf("%v: %d of %d connections failed in %d moves", v.addrs[i], r.Failed, r.Tried, *moves)
		}
	}
	// The successor answers before the old owner stops.
	s.t.Logf("%d questions were asked while both answered", overlaps)
}
