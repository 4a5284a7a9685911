package bgp

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestBFD: with a BFDProfile BFD monitors the paths to both routers, over IPv4, over IPv6 and over several hops. Other
// intervals are negotiated while all sessions stay. A node that is cut off is removed from the routers' kernels long
// before its hold time expires. Without the profile there is only BGP, and no other session changes.
func TestBFD(t *testing.T) {
	initial(t)
	apply(t, "BFDProfile/watch", "{}")
	apply(t, "BFDProfile/far", "{minimumTtl: 63}") // BIRD sends multihop packets with the kernel's TTL of 64, and there is one router in between
	// The far routers are on the clients' machines, whose own routes must stay.
	apply(t, "BGPAdvertisement/routed", "{ipAddressPools: [routed], peers: [bird, bird6, frr, frr6]}")
	timers := router.BFDTimers{Interval: 300 * time.Millisecond, Multiplier: 3}
	var all []*watcher
	for _, r := range tors {
		far := r.beyond(t, timers)
		r.configure(t, func(c *router.Config) {
			c.Neighbors = append(c.Neighbors, r.neighbors6(nil)...)
			for i := range c.Neighbors {
				c.Neighbors[i].BFD = timers
			}
		})
		all = append(all, &watcher{tor: r, peer: r.name, profile: "watch", spec: func(more string) string { return r.peer("", more) }},
			&watcher{tor: r, peer: r.name6(), suffix: "v6", profile: "watch", spec: func(more string) string { return r.peer("6", more) }},
			&watcher{tor: far, peer: far.name, profile: "far", spec: func(more string) string { return far.peer("", "ebgpMultiHop: true, "+more) }})
	}
	for _, w := range all {
		apply(t, "BGPPeer/"+w.peer, w.spec("bfdProfile: "+w.profile))
	}
	for _, w := range all {
		w.up(t, timers.Interval, 3*timers.Interval)
		condition(t, w.peer, metav1.ConditionTrue, "Established", "3/3")
	}
	routed(t, host(vip), nodes(true)...)
	routed(t, host(vip6), nodes(false)...)

	sessions := mark(t, all)
	for profile, spec := range map[string]string{"watch": "receiveInterval: 500, transmitInterval: 400, detectMultiplier: 4",
		"far": "minimumTtl: 63, receiveInterval: 500, transmitInterval: 400, detectMultiplier: 4"} {
		if err := put(t.Context(), "BFDProfile/"+profile, "{"+spec+"}"); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range all {
		w.up(t, 500*time.Millisecond, 4*400*time.Millisecond)
	}
	remove(t, "BFDProfile/far") // it stays in force
	cluster.Await(t, patience, "the BGPPeers report that their BFDProfile is missing", func(ctx context.Context) error {
		for _, w := range all {
			var peer v1alpha1.BGPPeer
			if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: w.peer}, &peer); err != nil {
				return err
			}
			c := meta.FindStatusCondition(peer.Status.Conditions, "Ready")
			if missing := w.profile == "far"; c == nil || (c.Reason == "NoBFDProfile") != missing || (peer.Status.LastBFDProfile != "") != missing {
				return fmt.Errorf("%s: %+v, %q", w.peer, c, peer.Status.LastBFDProfile)
			}
		}
		return nil
	})
	sessions.same(t)

	cut(t, all, cluster.Node(2))

	// BIRD 2.0.12 and FRR 8.4.4 end a session when BFD reports AdminDown (RFC 5882, 4.2, requires them to keep it): it
	// is re-established without BFD at once.
	var without, others []*watcher
	for _, w := range all {
		if w.suffix == "" {
			others = append(others, w)
		} else {
			without = append(without, w)
		}
	}
	sessions = mark(t, others)
	for _, w := range without {
		if err := put(t.Context(), "BGPPeer/"+w.peer, w.spec("")); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range without {
		w.down(t, cluster.Nodes...)
		w.now(t)
		reported(t, w.peer, "established, without BFD", func(s v1alpha1.SessionStatus) bool {
			return s.State == v1alpha1.SessionEstablished && s.BFD == nil
		})
	}
	routed(t, host(vip6), nodes(false)...)
	asked(t, vip6)
	sessions.same(t)
}

// cut cuts off a node without a link down. It checks that the node's routes are removed long before the hold
// time, and restores the node.
func cut(t *testing.T, all []*watcher, n *lab.Node) {
	t.Helper()
	const hold = 90 * time.Second
	for _, w := range all {
		for name, s := range w.now(t) {
			if s.Hold != hold {
				t.Fatalf("%s: the hold time with %s is %s, want %s", w.peer, name, s.Hold, hold)
			}
		}
	}
	repaired := false
	repair := func() {
		if repaired {
			return
		}
		repaired = true
		if err := n.RestoreLAN(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(repair)
	if err := n.CutLAN(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	routed(t, host(vip), nodes(true, n)...)
	routed(t, host(vip6), nodes(false, n)...)
	if took := time.Since(began); took > hold/4 {
		t.Errorf("the routers' kernels had routes by way of %s for %s; BFD has 1.6s, and the hold time is %s", n.Name, took, hold)
	}
	asked(t, vip)
	for _, w := range all {
		w.down(t, n)
		reports(t, n, w.peer, "that BFD ended it", func(s v1alpha1.SessionStatus) bool {
			return s.State != v1alpha1.SessionEstablished && s.Reason == string(routes.BFDWentDown) && s.BFD != nil && s.BFD.State != v1alpha1.BFDUp
		})
	}
	repair()
	for _, w := range all {
		w.up(t, 500*time.Millisecond, 4*400*time.Millisecond)
	}
	routed(t, host(vip), nodes(true)...)
	routed(t, host(vip6), nodes(false)...)
}

// watcher is a router with one session for each node, and the BGPPeer of these sessions.
type watcher struct {
	*tor
	peer, suffix, profile string
	spec                  func(more string) string // of the BGPPeer
}

// now returns the sessions, by the nodes' names, once all are established.
func (w *watcher) now(t *testing.T) (out map[string]router.Session) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("%s has a session with each node", w.peer), func(ctx context.Context) (err error) {
		out, err = w.sessions(ctx, w.suffix)
		return err
	})
	return out
}

// bfd waits until each node's BFD session at the router satisfies check.
func (w *watcher) bfd(t *testing.T, what string, of []*lab.Node, check func(router.BFDSession) bool) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("the router of %s reports BFD %s", w.peer, what), func(ctx context.Context) error {
		sessions, err := w.BFD(ctx)
		for _, n := range of {
			addr := n.Addr
			if w.suffix != "" {
				addr = n.Addr6
			}
			if s := sessions[addr.String()]; !check(s) {
				err = errors.Join(err, fmt.Errorf("with %v it is %+v", addr, s))
			}
		}
		return err
	})
}

// up waits until both sides report BFD up with every node, with this transmit interval and detection time of the
// router.
func (w *watcher) up(t *testing.T, interval, detect time.Duration) {
	t.Helper()
	w.now(t)
	w.bfd(t, fmt.Sprintf("up, %s and %s", interval, detect), cluster.Nodes, func(s router.BFDSession) bool {
		return s.State == "Up" && s.Interval == interval && s.Detect == detect
	})
	reported(t, w.peer, "established, with BFD", func(s v1alpha1.SessionStatus) bool {
		return s.State == v1alpha1.SessionEstablished && s.BFD != nil && s.BFD.State == v1alpha1.BFDUp && s.BFD.Since != nil
	})
}

// down waits until the router reports that BFD with these nodes is not up.
func (w *watcher) down(t *testing.T, of ...*lab.Node) {
	t.Helper()
	w.bfd(t, "not up", of, func(s router.BFDSession) bool { return s.State != "Up" })
}

// marked are the sessions of watchers at one time, by the nodes' names.
type marked struct {
	all      []*watcher
	sessions []map[string]router.Session
}

func mark(t *testing.T, all []*watcher) *marked {
	t.Helper()
	m := &marked{all: all}
	for _, w := range all {
		m.sessions = append(m.sessions, w.now(t))
	}
	return m
}

// same checks that the sessions are unchanged.
func (m *marked) same(t *testing.T) {
	t.Helper()
	for i, w := range m.all {
		for name, is := range w.now(t) {
			if was := m.sessions[i][name]; !is.Same(was) {
				t.Errorf("%s: the session with %s is another one: since %v, it was since %v", w.peer, name, is.Since, was.Since)
			}
		}
	}
}
