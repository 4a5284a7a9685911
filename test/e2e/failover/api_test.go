package failover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// TestAPIServerDown: while the API server is unreachable every address is answered continuously. The VirtualIPs of a
// dead node move, and no others. Nothing moves when the server and the node return.
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

// TestStartsWithoutAPIServer: a speaker that is restarted while the API server is unreachable uses its snapshot. It
// takes no VirtualIP from the new owners. After a restart of all speakers every address is answered and served again,
// by one node each. Nothing moves when the server returns.
func TestStartsWithoutAPIServer(t *testing.T) {
	s, _ := serving(t, 3)
	k := keepState(t)
	before := s.settled("with speakers that keep their state")
	s.reported(before)
	cluster.Await(t, patience, "every speaker has written a snapshot", func(context.Context) error {
		for _, n := range cluster.Nodes[:candidates] {
			if _, err := os.Stat(filepath.Join(stateDir(), "snapshot-"+n.Name)); err != nil {
				return err
			}
		}
		return nil
	})
	restore := stopAPIServer(t)

	victim := before[s.vips[0].service]
	died := time.Now()
	k.kill(victim)
	after := s.leaves(victim)
	s.stayed(died, before, after, victim)
	since := time.Now()
	k.start(victim)
	fromSnapshot(t, victim, true)
	s.stayed(since, after, s.settledFor(watch, "after one start without the API server"))

	killed := time.Now()
	for _, n := range cluster.Nodes[:candidates] {
		k.kill(n)
	}
	silent(t, s)
	started := time.Now()
	for _, n := range cluster.Nodes[:candidates] {
		k.start(n)
	}
	now := s.settledFor(watch, "after all were started without the API server")
	s.handedOver(killed, after, now, cluster.Nodes[:candidates]...)
	for _, v := range s.vips {
		for _, a := range v.addrs {
			t.Logf("%v: on %s, answered again within %v of the start", a, now[v.service].Name, answered(s, a, started).Round(time.Millisecond))
		}
		stop := s.client(v)
		stop(time.Now())
	}
	for _, n := range cluster.Nodes[:candidates] {
		fromSnapshot(t, n, true)
	}

	since = time.Now()
	restore()
	for _, n := range cluster.Nodes[:candidates] {
		fromSnapshot(t, n, false)
	}
	s.stayed(since, now, s.settledFor(watch, "with the API server back"))
	s.reported(now)
}

// stopAPIServer stops the API server. restore starts it again. The end of the test does so as well, and replaces
// ironlb-ccm: client-go reconnects within a minute (test/ccm waits for that), and Services are deleted next.
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

func stateDir() string { return filepath.Join(cluster.Dir, "state") }

// keeping restarts speakers that keep their state, without the API server, as the kubelet does. The lab's own way to
// start a speaker requests a token from it.
type keeping struct {
	t    *testing.T
	argv map[*lab.Node][]string
	runs map[*lab.Node]*process.Process
}

// keepState restarts all speakers with a state directory, until the end of the test.
func keepState(t *testing.T) *keeping {
	t.Helper()
	k := &keeping{t: t, argv: map[*lab.Node][]string{}, runs: map[*lab.Node]*process.Process{}}
	config := stateDir() + ".yaml"
	if err := os.WriteFile(config, []byte("dataplane: nftables\nstateDir: "+stateDir()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range cluster.Nodes[:candidates] {
			var err error
			if p := k.runs[n]; p != nil && p.Running() {
				err = p.Kill()
			}
			if !n.Speaker().Running() {
				err = errors.Join(err, n.StartSpeaker(context.Background(), "--config", speakerConfig()))
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	for _, n := range cluster.Nodes[:candidates] {
		var err error
		if k.argv[n], err = n.SpeakerArgv(t.Context(), "--config", config); err != nil {
			t.Fatal(err)
		}
		if err := n.KillSpeaker(); err != nil {
			t.Fatal(err)
		}
		k.start(n)
		fromSnapshot(t, n, false)
	}
	return k
}

func (k *keeping) start(n *lab.Node) {
	k.t.Helper()
	p, err := n.Start(context.WithoutCancel(k.t.Context()), "ironlb-speaker", host.Cmd{Argv: k.argv[n]})
	if err != nil {
		k.t.Fatal(err)
	}
	k.runs[n] = p
}

func (k *keeping) kill(n *lab.Node) {
	k.t.Helper()
	if err := k.runs[n].Kill(); err != nil {
		k.t.Fatal(err)
	}
}

// fromSnapshot waits until a speaker is ready and uses its snapshot, or no longer uses it.
func fromSnapshot(t *testing.T, n *lab.Node, want bool) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("the speaker of %s uses its snapshot: %t", n.Name, want), func(ctx context.Context) error {
		text, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
		if err == nil && strings.Contains(text, "from snapshot") != want {
			err = fmt.Errorf("/readyz: got %q", text)
		}
		return err
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

// answered returns the time from a moment until an address was first answered, in steps of a tenth of a second.
func answered(s *scene, a netip.Addr, since time.Time) time.Duration {
	for at := since; at.Before(time.Now()); at = at.Add(100 * time.Millisecond) {
		if len(s.w.Seen(a, since, at).All) > 0 {
			return at.Sub(since)
		}
	}
	return 0
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
