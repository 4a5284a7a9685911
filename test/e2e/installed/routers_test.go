package installed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

const (
	nodeASN   = 65001
	routerASN = 65000
)

// routedAddr is in a range that is on no link: clients reach it only through routes announced by nodes.
var routedAddr = netip.MustParseAddr("203.0.113.1")

// peer is a router with a session for each node, and a client behind it.
type peer struct {
	router.Router
	name            string // kind of the router and of its BGPPeer
	machine, client *lab.Machine
	place           router.Place
}

// startRouters starts BIRD on the lab's router and FRR on its client, until the end of the test.
func startRouters(t *testing.T) []*peer {
	t.Helper()
	behind, err := cluster.Behind(t.Context(), cluster.Client)
	if err != nil {
		t.Fatal(err)
	}
	return []*peer{
		startRouter(t, "bird", cluster.Router, cluster.Remote),
		startRouter(t, "frr", cluster.Client, behind),
	}
}

func startRouter(t *testing.T, kind string, on, client *lab.Machine) *peer {
	t.Helper()
	// Connections of one client spread over all next hops, as on hardware routers.
	sysctls := []string{"sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1", "net.ipv4.ip_forward=1"}
	if _, err := on.Exec(t.Context(), sysctls...); err != nil {
		t.Fatal(err)
	}
	r := &peer{name: kind, machine: on, client: client}
	r.place = router.Place{Host: on.Host(), Namespace: "/run/netns/" + on.Namespace, Logs: cluster.Dir}
	config := router.Config{ASN: routerASN, ID: on.Addr}
	for _, n := range cluster.Nodes {
		config.Neighbors = append(config.Neighbors, router.Neighbor{Name: n.Name, Address: n.Addr, ASN: nodeASN,
			BFD: router.BFDTimers{Interval: 300 * time.Millisecond, Multiplier: 3}, BFDGraceful: true})
	}
	var err error
	if r.Router, err = router.Kinds[kind](t.Context(), r.place, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", kind, r.Log())
		}
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// announce makes the nodes announce an address of the Pods of Service web to the routers, until the end of the test.
func announce(t *testing.T, routers []*peer) netip.AddrPort {
	t.Helper()
	manifest, made := fmt.Sprintf(`
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: routed}
spec: {addresses: [%[1]v/32], autoAssign: false}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: routed}
spec: {ipAddressPools: [routed]}
---
apiVersion: ironlb.io/v1alpha1
kind: BFDProfile
metadata: {name: usual}
---
apiVersion: v1
kind: Service
metadata: {name: routed, annotations: {ironlb.io/ips: "%[1]v"}}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}, {name: stream, port: 9090, targetPort: 9090}]
`, routedAddr), []string{"service/routed"}
	for _, r := range routers {
		manifest += fmt.Sprintf(`---
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: %s}
spec: {myASN: %d, peerASN: %d, peerAddress: %v, gracefulRestart: true, bfdProfile: usual}
`, r.name, nodeASN, routerASN, r.machine.Addr)
		made = append(made, "bgppeer/"+r.name)
	}
	made = append(made, "bgpadvertisement/routed", "bfdprofile/usual", "ipaddresspool/routed")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, object := range made { // the Service first: a killed router leaves its routes behind
			if _, err := cluster.Kubectl(ctx, "delete", object, "--ignore-not-found", "--timeout=60s"); err != nil {
				t.Error(err)
			}
			if object == made[0] {
				for _, r := range routers {
					r.routed(t, routedAddr)
				}
			}
		}
	})
	if err := cluster.ApplyYAML(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	for _, r := range routers {
		kubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "bgppeer/"+r.name)
	}
	return netip.AddrPortFrom(routedAddr, 80)
}

// routed waits until the router's kernel routes an address through exactly these nodes; none: it has no route.
func (r *peer) routed(t *testing.T, addr netip.Addr, nodes ...*lab.Node) {
	t.Helper()
	var want []netip.Addr
	for _, n := range nodes {
		want = append(want, n.Addr)
	}
	check := func(ctx context.Context) error {
		routes, err := r.Routes(ctx, 4)
		var via []netip.Addr
		for _, route := range routes {
			if route.Prefix.Addr() == addr {
				via = route.Via
			}
		}
		if err == nil && !slices.Equal(via, want) {
			err = fmt.Errorf("it has %v", routes)
		}
		return err
	}
	what := fmt.Sprintf("%s to have %v by way of %v", r.name, addr, want)
	// Not the test's own context: cleanups wait, too.
	if err := cluster.Eventually(context.WithoutCancel(t.Context()), time.Minute, what, check); err != nil {
		t.Error(err)
	}
}

// watch records the changes of the router's kernel; the returned function checks that none concerns the address.
func (r *peer) watch(t *testing.T, addr netip.Addr) (unchanged func()) {
	t.Helper()
	m, err := r.place.Monitor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop() })
	return func() {
		t.Helper()
		for _, e := range m.Events() {
			if e.Prefix.Addr() == addr {
				t.Errorf("%s: the kernel's route changed: %v", r.name, e)
			}
		}
	}
}

// path returns the path that a node announced for the address.
func (r *peer) path(ctx context.Context, n *lab.Node) (router.Path, error) {
	paths, err := r.RIB(ctx, netip.PrefixFrom(routedAddr, 32).String())
	for _, p := range paths {
		if p.From == n.Addr {
			return p, err
		}
	}
	return router.Path{}, errors.Join(err, fmt.Errorf("%s has no path of %s", r.name, n.Name))
}

// sessions of a router: BGP sessions by node name, BFD sessions by address.
type sessions struct {
	bgp map[string]router.Session
	bfd map[string]router.BFDSession
}

// allEstablished waits until each router has sessions with every node, and returns them.
func allEstablished(t *testing.T, routers []*peer) (all []sessions) {
	t.Helper()
	for _, r := range routers {
		var s sessions
		cluster.Await(t, time.Minute, r.name+" to have sessions with every node", func(ctx context.Context) (err error) {
			if s.bgp, err = r.Sessions(ctx); err != nil {
				return err
			}
			if s.bfd, err = r.BFD(ctx); err != nil {
				return err
			}
			for _, n := range cluster.Nodes {
				if bgp, bfd := s.bgp[n.Name], s.bfd[n.Addr.String()]; !bgp.Established || bfd.State != "Up" {
					err = errors.Join(err, fmt.Errorf("with %s BGP is %s, BFD %s", n.Name, bgp.State, bfd.State))
				}
			}
			return err
		})
		all = append(all, s)
	}
	return all
}

// same checks that the router's sessions with a node are unchanged.
func (r *peer) same(t *testing.T, n *lab.Node, before, now sessions) {
	t.Helper()
	if is, was := now.bgp[n.Name], before.bgp[n.Name]; !is.Same(was) {
		t.Errorf("%s: the session with %s is since %v, was since %v", r.name, n.Name, is.Since, was.Since)
	}
	is, was := now.bfd[n.Addr.String()], before.bfd[n.Addr.String()]
	if is.Downs != was.Downs || is.Since.Sub(was.Since).Abs() > 2*time.Second { // FRR reports its age in seconds
		t.Errorf("%s: BFD with %s is since %v after %d ends, was since %v after %d",
			r.name, n.Name, is.Since, is.Downs, was.Since, was.Downs)
	}
}
