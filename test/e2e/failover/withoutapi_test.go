package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
)

// TestAPIServerDown: while the API server is unreachable every address is answered continuously. The VirtualIPs of a
// dead node move, and no others. So do those of a speaker that is restarted meanwhile: it owns nothing, is not ready, and
// its node's data plane stays. Nothing moves when the server and the node return.
func TestAPIServerDown(t *testing.T) {
	s, before := serving(t, 3)
	victim := before[s.vips[0].service]
	// On another node, so it must stay unaffected.
	var bystander vip
	for _, v := range s.vips {
		if before[v.service] != victim {
			bystander = v
		}
	}
	restarted := cluster.Nodes[slices.IndexFunc(cluster.Nodes[:candidates], func(n *lab.Node) bool {
		return n != victim && n != before[bystander.service]
	})]
	argv, err := restarted.SpeakerArgv(t.Context(), "--config", speakerConfig())
	if err != nil {
		t.Fatal(err)
	}
	stop := s.client(bystander)

	began := time.Now()
	restore := stopAPIServer(t)
	s.lasts(before, began, *apiDown/2)
	s.stayed(began, before, before)

	died := time.Now()
	if err := victim.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	off := true
	t.Cleanup(func() {
		restore()
		if !off {
			return
		}
		if err := powerOn(context.Background(), victim); err != nil {
			t.Error(err)
		}
	})
	after := s.leaves(victim)
	s.stayed(died, before, after, victim)
	s.lasts(after, time.Now(), *apiDown/2)

	killed := time.Now()
	restartAway(t, restarted, argv, restore)
	left := s.leaves(restarted)
	s.lasts(left, time.Now(), watch)
	s.stayed(killed, after, left, restarted) // later: it may have owned nothing
	if err := ready(t.Context(), restarted); err == nil {
		t.Errorf("the speaker of %s is ready without the API server", restarted.Name)
	}
	after = left

	since := time.Now()
	restore()
	if err := powerOn(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	off = false
	s.stayed(since, after, s.settledFor(watch, "with the API server back"))
	for i, r := range stop(began) {
		t.Logf("%v, on a node that nothing happened to: %s", bystander.addrs[i], r)
		if r.Failed > 0 {
			t.Errorf("%v: %d connections failed, and nothing happened to its node", bystander.addrs[i], r.Failed)
		}
	}
}

// stopAPIServer stops the API server. restore starts it again. The end of the test does so as well, and replaces
// ironlb-ccm: client-go reconnects within a minute (test/ccm waits for that), and Services are deleted next. This file is
// the package's last one, so that no other test waits for that.
func stopAPIServer(t *testing.T) (restore func()) {
	t.Helper()
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := cluster.StartAPIServer(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		restore()
		if err := startCCM(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return restore
}

// restartAway ends the speaker of a node and starts it again while the API server is unreachable, as a kubelet does, with
// a command from before. The end of the test replaces it by the lab's own.
func restartAway(t *testing.T, n *lab.Node, argv []string, restore func()) {
	t.Helper()
	if err := n.KillSpeaker(); err != nil {
		t.Fatal(err)
	}
	p, err := n.Start(context.WithoutCancel(t.Context()), "ironlb-speaker", host.Cmd{Argv: argv})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		restore()
		if err := errors.Join(p.Kill(), n.StartSpeaker(context.Background(), "--config", speakerConfig())); err != nil {
			t.Error(err)
		}
	})
}

// silent waits until no node answers for any address.
func silent(t *testing.T, s *scene) {
	t.Helper()
	cluster.Await(t, patience, "no node answers", func(context.Context) error {
		now := time.Now()
		for _, v := range s.vips {
			for _, a := range v.addrs {
				if seen := s.w.Seen(a, now.Add(-time.Second), now); seen.Asked < 5 || len(seen.All) > 0 {
					return fmt.Errorf("%v: %+v", a, seen)
				}
			}
		}
		return nil
	})
}

// unknown waits until no speaker has a VirtualIP, and no node answers. After an outage of the API server it takes a
// while until a speaker has received the deletion of another test's Service. Until then it would treat a Service of the
// same name as that one, whose addresses it has always used.
func unknown(t *testing.T, s *scene) {
	t.Helper()
	for _, n := range cluster.Nodes {
		if p := n.Speaker(); p == nil || !p.Running() {
			continue
		}
		cluster.Await(t, patience, n.Name+" has no VirtualIP", func(ctx context.Context) error {
			metrics, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "2", "http://127.0.0.1:7950/metrics")
			if err != nil {
				return err
			}
			for line := range strings.Lines(metrics) {
				if strings.HasPrefix(line, "ironlb_speaker_vips{") && !strings.HasSuffix(line, " 0\n") {
					return errors.New(line)
				}
			}
			return nil
		})
	}
	silent(t, s)
}

// lasts checks that the owners stay the same for the span.
func (s *scene) lasts(o owners, since time.Time, span time.Duration) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(span); time.Now().Before(end); <-tick.C {
		cluster.Need(s.t)
		for _, v := range s.vips {
			for _, a := range v.addrs {
				now := time.Now()
				// No other node answered, and half the requests of each last second were answered: an answer may be
				// late on a busy machine.
				seen := s.w.Seen(a, since, now)
				last := s.w.Seen(a, now.Add(-time.Second), now)
				if len(seen.All) > 1 || len(seen.All) == 1 && seen.All[0] != o[v.service].MAC() || last.Asked > 5 && last.Unanswered > last.Asked/2 {
					s.t.Fatalf("%s, %v: answered by %v, want %s alone; in the last second: %+v", v.service, a, names(seen.All), o[v.service].Name, last)
				}
			}
		}
	}
}
