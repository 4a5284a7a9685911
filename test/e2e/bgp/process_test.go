package bgp

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestProcessesEnd: what a router and a client see when one of the processes of a node ends is nothing. Each comes back by itself or is
// started again, as a kubelet does.
func TestProcessesEnd(t *testing.T) {
	cluster.Need(t)
	ctx := t.Context()
	routed(t, cluster.Nodes...)
	n := cluster.Node(1)
	for _, test := range []struct {
		name    string
		end     func() error
		again   func() error
		session bool // stays
	}{
		{"speaker killed", n.KillSpeaker, func() error { return speaker(ctx, n) }, true},
		{"GoBGP killed", func() error { return n.KillGoBGP(ctx) }, func() error { return nil }, false},
		{"ironlb-bgpd killed", n.KillBGP, func() error { return n.StartBGP(ctx) }, false},
		{"ironlb-bgpd stopped", n.StopBGP, func() error { return n.StartBGP(ctx) }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, err := sessions(ctx)
			if err != nil {
				t.Fatal(err)
			}
			monitor, err := place.Monitor(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer monitor.Stop()
			client, err := cluster.Remote.StartProbe(ctx, lab.Probe{Network: "tcp", Target: netip.AddrPortFrom(vip, 80), Every: 20 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			if err := client.WaitAnswers(ctx, patience, 10); err != nil {
				t.Fatal(err)
			}
			if err := test.end(); err != nil {
				t.Fatal(err)
			}
			if err := client.WaitAnswers(ctx, patience, 50); err != nil {
				t.Error(err)
			}
			if err := test.again(); err != nil {
				t.Fatal(err)
			}
			settle(t, before, n, test.session)
			if err := client.WaitAnswers(ctx, patience, 50); err != nil {
				t.Error(err)
			}
			if s, err := client.Stop(); err != nil || s.Failed > 0 {
				t.Errorf("the client saw %v (%v)", s, err)
			}
			for _, e := range monitor.Events() {
				if e.Prefix.Contains(vip) {
					t.Errorf("the router's route changed: %v", e)
				}
			}
			routed(t, cluster.Nodes...)
		})
	}
}

// settle waits until the node's process is able again and knows a speaker, and then, if the session should be another one, for that; those
// of the other nodes must be as they were.
func settle(t *testing.T, before map[string]router.Session, n *lab.Node, stays bool) {
	t.Helper()
	same := func(name string, now map[string]router.Session) bool {
		return now[name].Since.Sub(before[name].Since).Abs() < 500*time.Millisecond
	}
	err := cluster.Eventually(t.Context(), patience, "the sessions are there", func(ctx context.Context) error {
		_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7473/readyz")
		if err != nil {
			return err
		}
		now, err := sessions(ctx)
		if err == nil && !stays && same(n.Name, now) {
			return errors.New("the session is still the old one")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	now, err := sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range before {
		if (name != n.Name || stays) && !same(name, now) {
			t.Errorf("the session with %s was since %v and is since %v", name, before[name].Since, now[name].Since)
		}
	}
}
