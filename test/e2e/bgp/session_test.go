package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/router"
	"github.com/ironlb/ironlb/test/rare"
)

// TestFamilies: IPv4 and IPv6 over separate sessions, and both over one of either family. The routers' kernels have
// three next hops, and requests through them are answered.
func TestFamilies(t *testing.T) {
	initial(t)
	t.Run("IPv4", func(t *testing.T) {
		routed(t, host(vip), nodes(true)...)
		asked(t, vip)
		for _, r := range tors {
			condition(t, r.name, metav1.ConditionTrue, "Established", "3/3")
			reported(t, r.name, "established", func(s v1alpha1.SessionStatus) bool {
				return s.State == v1alpha1.SessionEstablished && s.PeerASN == routerASN && s.PeerID == r.machine.Addr.String() && s.Prefixes == 1
			})
		}
	})
	t.Run("IPv6", func(t *testing.T) {
		second(t, "", nil)
		routed(t, host(vip6), nodes(false)...)
		asked(t, vip6)
	})
	t.Run("both over IPv4", func(t *testing.T) {
		for _, r := range tors {
			r.configure(t, func(c *router.Config) {
				for i := range c.Neighbors {
					c.Neighbors[i].IPv4, c.Neighbors[i].IPv6 = true, true
				}
			})
			apply(t, "BGPPeer/"+r.name, r.peer("", "dualStackAddressFamily: true"))
		}
		routed(t, host(vip), nodes(true)...)
		routed(t, host(vip6), nodes(false)...)
		asked(t, vip)
		asked(t, vip6)
	})
	t.Run("both over IPv6", func(t *testing.T) {
		second(t, "dualStackAddressFamily: true", func(n *router.Neighbor) { n.IPv4, n.IPv6 = true, true })
		routed(t, host(vip6), nodes(false)...)
		asked(t, vip6)
		for _, r := range tors {
			r.rib(t, host(vip), "over IPv6", func(by map[netip.Addr]router.Path) error {
				for _, n := range cluster.Nodes {
					if by[n.Addr6].NextHop != n.Addr {
						return fmt.Errorf("none by way of %v from %v", n.Addr, n.Addr6)
					}
				}
				return nil
			})
		}
	})
	initial(t)
}

// second adds a session over IPv6 with every node to every router.
func second(t *testing.T, more string, edit func(*router.Neighbor)) {
	t.Helper()
	for _, r := range tors {
		r.configure(t, func(c *router.Config) { c.Neighbors = append(c.Neighbors, r.neighbors6(edit)...) })
		apply(t, "BGPPeer/"+r.name6(), r.peer("6", more))
	}
}

// TestPassword: with the router's password the session is established, with another it never is, and a changed Secret
// affects no other session. No report contains a password.
func TestPassword(t *testing.T) {
	before := initial(t)
	const never, right, no = "never-the-routers", "open-sesame", "not-any-more"
	password(t, "routers", never)
	second(t, "passwordSecret: {name: routers}", func(n *router.Neighbor) { n.Password = right })
	for _, r := range tors {
		wrong(t, r.name6(), routes.NoAnswer)
	}
	down(t)
	password(t, "routers", right)
	up(t)
	routed(t, host(vip6), nodes(false)...)
	password(t, "routers", no)
	for _, r := range tors {
		wrong(t, r.name6(), routes.NoAnswer)
	}
	down(t)
	same(t, before)
	for where, text := range routesOf(t) {
		for _, r := range tors {
			if !strings.Contains(text, r.name6()) {
				t.Errorf("%s does not mention %s at all", where, r.name6())
			}
		}
		for _, part := range []string{never, right, no} {
			if i := strings.Index(text, part); i >= 0 {
				t.Errorf("%s has the password: %s", where, text[max(0, i-200):min(len(text), i+200)])
			}
		}
	}
}

// routesOf returns all texts about peers, by their source: the objects with their conditions, Events, and the logs of
// each node's processes.
func routesOf(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, kind := range []string{"bgppeers", "speakerstatuses", "events"} {
		text, err := cluster.Kubectl(t.Context(), "get", kind, "--all-namespaces", "-o", "yaml")
		if err != nil {
			t.Fatal(err)
		}
		out[kind] = text
	}
	for _, n := range cluster.Nodes {
		for name, p := range map[string]*process.Process{"speaker": n.Speaker(), "ironlb-bgpd": n.BGP()} {
			text, err := os.ReadFile(p.Log)
			if err != nil {
				t.Fatal(err)
			}
			out["the log of the "+name+" of "+n.Name] = string(text)
		}
	}
	return out
}

// TestPasswordMissing: without the Secret there is no session, and the reason is reported; with it there is a session.
func TestPasswordMissing(t *testing.T) {
	rare.Test(t)
	before := initial(t)
	second(t, "passwordSecret: {name: absent}", func(n *router.Neighbor) { n.Password = "open-sesame" })
	for _, r := range tors {
		wrong(t, r.name6(), routes.PasswordMissing)
	}
	password(t, "absent", "open-sesame")
	up(t)
	same(t, before)
}

// TestTTLSecurity: with it on both sides there is a session. With a router without it, whose packets arrive with
// another TTL, there is none.
func TestTTLSecurity(t *testing.T) {
	rare.Test(t)
	before := initial(t)
	second(t, "ttlSecurity: true", func(n *router.Neighbor) { n.TTLSecurity = true })
	up(t)
	routed(t, host(vip6), nodes(false)...)
	for _, r := range tors {
		remove(t, "BGPPeer/"+r.name6())
		r.configure(t, func(c *router.Config) { c.Neighbors = append(c.Neighbors, r.neighbors6(nil)...) })
	}
	down(t)
	for _, r := range tors {
		apply(t, "BGPPeer/"+r.name6(), r.peer("6", "ttlSecurity: true"))
	}
	for _, r := range tors {
		if message := wrong(t, r.name6(), routes.NoAnswer); !strings.Contains(message, "ttlSecurity") {
			t.Errorf("the Event about the peer %s: got %q, want it to ask for ttlSecurity", r.name6(), message)
		}
	}
	down(t)
	same(t, before)
}

// TestMultiHop: a router behind another has a session only with ebgpMultiHop. It can be enabled at run time.
func TestMultiHop(t *testing.T) {
	rare.Test(t)
	for _, near := range tors {
		t.Run(near.name, func(t *testing.T) {
			t.Parallel()
			before := initial(t)
			r := near.beyond(t, router.BFDTimers{})
			far, peer := r.machine, r.name
			const spec = "{myASN: %d, peerASN: %d, peerAddress: %q, connectTime: 1s, ebgpMultiHop: %t}"
			apply(t, "BGPPeer/"+peer, fmt.Sprintf(spec, nodeASN, routerASN, far.Addr, false))
			wrong(t, peer, routes.Unreachable)
			if err := put(t.Context(), "BGPPeer/"+peer, fmt.Sprintf(spec, nodeASN, routerASN, far.Addr, true)); err != nil {
				t.Fatal(err)
			}
			condition(t, peer, metav1.ConditionTrue, "Established", "3/3")
			cluster.Await(t, patience, "the far router has a path from each node", func(ctx context.Context) error {
				paths, err := r.RIB(ctx, host(vip).String())
				for _, p := range paths {
					if p.NextHop != p.From {
						err = errors.Join(err, fmt.Errorf("%+v", p))
					}
				}
				if len(paths) != len(cluster.Nodes) {
					err = errors.Join(err, fmt.Errorf("it has %+v", paths))
				}
				return err
			})
			same(t, before)
		})
	}
}

// beyond starts a router of the same kind behind this one, with a session over two hops for each node, until the end of
// the test.
func (r *tor) beyond(t *testing.T, timers router.BFDTimers) *tor {
	t.Helper()
	far := &tor{name: "far-" + r.name, machine: r.client}
	far.config = router.Config{ASN: routerASN, ID: far.machine.Addr}
	for _, n := range cluster.Nodes {
		far.config.Neighbors = append(far.config.Neighbors, router.Neighbor{Name: n.Name, Address: n.Addr, Local: far.machine.Addr, ASN: nodeASN, MultiHop: 8, BFD: timers})
	}
	far.place = router.Place{Host: far.machine.Host(), Namespace: "/run/netns/" + far.machine.Namespace, Logs: t.TempDir()}
	var err error
	if far.Router, err = router.Kinds[r.name](t.Context(), far.place, far.config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := far.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { // when the peer is gone; a killed router leaves its routes behind
		cluster.Await(t, patience, "the far router has no route any more", func(ctx context.Context) error {
			prefixes, err := far.Routes(ctx, 4)
			if err == nil && len(prefixes) > 0 {
				err = fmt.Errorf("it has %v", prefixes)
			}
			return err
		})
	})
	return far
}
