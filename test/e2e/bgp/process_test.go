package bgp

import (
	"context"
	"errors"
	"testing"

	"github.com/ironlb/ironlb/test/lab/router"
	"github.com/ironlb/ironlb/test/rare"
)

// TestProcessesEnd: the end of a process of a node has no effect on routers and clients. Each process restarts by
// itself or is started again, as a kubelet does.
func TestProcessesEnd(t *testing.T) {
	n := cluster.Node(1)
	speaker := func() error { return startSpeaker(t.Context(), n) }
	bgpd := func() error { return n.StartBGP(t.Context()) }
	for _, test := range []struct {
		name       string
		end, again func() error
		session    bool // the session stays
	}{
		{"speaker replaced", n.ReplaceSpeaker, speaker, true}, // as by an upgrade of its DaemonSet
		{"speaker stopped", n.StopSpeaker, speaker, true},
		{"speaker killed", n.KillSpeaker, speaker, true},
		{"GoBGP killed", func() error { return n.KillGoBGP(t.Context()) }, func() error { return nil }, false},
		{"ironlb-bgpd killed", n.KillBGP, bgpd, false},
		{"ironlb-bgpd stopped", n.StopBGP, bgpd, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.name != "ironlb-bgpd killed" {
				rare.Test(t)
			}
			before := initial(t)
			table, answered := still(t, vip), clients(t, vip, tors...)
			if err := test.end(); err != nil {
				t.Fatal(err)
			}
			asked(t, vip)
			if err := test.again(); err != nil {
				t.Fatal(err)
			}
			cluster.Await(t, patience, "the node's processes are there", func(ctx context.Context) error {
				_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
				return err
			})
			if test.session {
				same(t, before)
			} else {
				renewed(t, before, n.Name)
				same(t, before, n)
			}
			answered()
			table()
			initial(t)
		})
	}
}

// renewed waits until each router has a new session with the node.
func renewed(t *testing.T, before map[*tor]map[string]router.Session, node string) {
	t.Helper()
	for _, r := range tors {
		cluster.Await(t, patience, r.name+" has a new session with "+node, func(ctx context.Context) error {
			now, err := r.sessions(ctx, "")
			if err == nil && now[node].Same(before[r][node]) {
				return errors.New("it is the old one")
			}
			return err
		})
	}
}

// TestAPIServerDown: without an API server sessions, routes and answers stay, even if ironlb-bgpd is killed meanwhile:
// the speaker sends it the desired state again.
func TestAPIServerDown(t *testing.T) {
	rare.Test(t)
	before := initial(t)
	n := cluster.Node(2)
	table, answered := still(t, vip), clients(t, vip, tors...)
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.StartAPIServer(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		cluster.Await(t, patience, "the Pod is ready again", func(ctx context.Context) error {
			_, err := cluster.WaitPod(ctx, "default", "web", true)
			return err
		})
		initial(t)
	})
	asked(t, vip)
	same(t, before)
	if err := n.KillBGP(); err != nil {
		t.Fatal(err)
	}
	asked(t, vip)
	if err := n.StartBGP(t.Context()); err != nil {
		t.Fatal(err)
	}
	renewed(t, before, n.Name)
	same(t, before, n)
	answered()
	table()
	routed(t, host(vip), nodes(true)...)
}
