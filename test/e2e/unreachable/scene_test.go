package unreachable

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
)

const patience = time.Minute

// service creates a Service with all Pods, and waits until all of them answer a client.
func service(t *testing.T, name string) (external, internal []netip.AddrPort) {
	t.Helper()
	svc := scene.Service(t, name)
	scene.Endpoints(t, name, slices.Sorted(maps.Keys(podNodes))...)
	external = scene.Each(scene.External(t, svc, scene.HTTPPort))
	internal = scene.Each(scene.Internal(t, svc, scene.HTTPPort))
	settled(t, external)
	return external, internal
}

// settled waits until every speaker is ready and reaches every node, and every Pod answers.
func settled(t *testing.T, targets []netip.AddrPort) {
	t.Helper()
	for _, n := range cluster.Nodes {
		cluster.Await(t, 2*patience, n.Name+" reaches all nodes", func(ctx context.Context) error {
			if _, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz"); err != nil {
				return err
			}
			for name, want := range map[string]int{
				"ironlb_liveness_peers_alive": len(cluster.Nodes) - 1, "ironlb_endpoint_unreachable_nodes": 0,
				"ironlb_endpoint_unreachable_unwitnessed_nodes": 0, "ironlb_liveness_observer": 0,
			} {
				if got, err := metric(ctx, n, name); err != nil || got != want {
					return fmt.Errorf("%s is %d, want %d: %w", name, got, want, err)
				}
			}
			return nil
		})
	}
	for _, at := range targets {
		cluster.Await(t, 2*patience, "every Pod answers at "+at.String(), func(ctx context.Context) error {
			s, err := cluster.Client.Ask(ctx, lab.Probe{Network: "tcp", Target: at, Every: *every, Count: 100})
			if err == nil && (s.Failed > 0 || len(s.ByPod) != len(podNodes)) {
				err = errors.New(s.String())
			}
			return err
		})
	}
}

// metric reads a metric without labels of a node's speaker.
func metric(ctx context.Context, n *lab.Node, name string) (int, error) {
	out, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(out)) {
		if value, is := strings.CutPrefix(line, name+" "); is {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return int(f), err
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", n.Name, name)
}

// owner returns the owner of an address, by its VirtualIP.
func owner(t *testing.T, addr netip.Addr) (n *lab.Node) {
	t.Helper()
	cluster.Await(t, patience, addr.String()+" has an owner", func(ctx context.Context) error {
		var list v1alpha1.VirtualIPList
		if err := cluster.Objects.List(ctx, &list); err != nil {
			return err
		}
		for _, v := range list.Items {
			if slices.Contains(v.Spec.Addresses, addr.String()) && v.Status.Node != "" {
				n = cluster.NodeByName(v.Status.Node)
				return nil
			}
		}
		return errors.New("no VirtualIP names one")
	})
	return n
}

// client makes new connections continuously, or sends datagrams from new ports.
type client struct {
	name string
	*lab.Prober
}

// withoutUDP selects the TCP clients. UDP does not retransmit, so it is left out where no request may fail.
const withoutUDP = "^[^U]*$"

// clients starts the clients whose names match a regular expression: one outside for each address, and one in a Pod. A
// request fails after the timeout.
func clients(t *testing.T, pod string, external, internal []netip.AddrPort, timeout time.Duration, which string) (all []client) {
	t.Helper()
	wanted := regexp.MustCompile(which)
	add := func(name string, m *lab.Machine, network string, at netip.AddrPort) {
		if wanted.MatchString(name) {
			all = append(all, begin(t, name, m, lab.Probe{Network: network, Target: at, Every: *every, Timeout: timeout, Most: 1000}))
		}
	}
	inside, err := cluster.PodMachine(metav1.NamespaceDefault, pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range external {
		add("outside, "+family(at), cluster.Client, "tcp", at)
		add("outside, UDP, "+family(at), cluster.Client, "udp", netip.AddrPortFrom(at.Addr(), scene.UDPPort))
	}
	for _, at := range internal {
		add("ClusterIP from a Pod, "+family(at), inside, "tcp", at)
	}
	answered(t, all, share(500*time.Millisecond))
	return all
}

// streams starts a connection from outside to each address, which must not end.
func streams(t *testing.T, external []netip.AddrPort) (all []client) {
	t.Helper()
	for _, at := range external {
		to := netip.AddrPortFrom(at.Addr(), scene.StreamPort)
		all = append(all, begin(t, "stream, "+family(at), cluster.Client, lab.Probe{Network: "stream", Target: to, Every: *every, Timeout: lab.Lost}))
	}
	return all
}

func begin(t *testing.T, name string, m *lab.Machine, probe lab.Probe) client {
	t.Helper()
	p, err := m.StartProbe(t.Context(), probe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.Stop() })
	return client{name, p}
}

func family(at netip.AddrPort) string {
	if at.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// share returns the number of requests of a client in a time.
func share(of time.Duration) int { return max(int(of / *every), 1) }

// answered waits until each client has more additional answers.
func answered(t *testing.T, all []client, more int) {
	t.Helper()
	var group errgroup.Group
	for _, c := range all {
		group.Go(func() error { return c.WaitAnswers(t.Context(), patience, more) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// outcome is the effect of a fault on a client.
type outcome struct {
	name         string
	last         time.Duration // from the first failed request of any client to the last failed one of this client
	failed, sent int           // since then
	summary      probe.Summary
}

// stopAll ends the clients. Times are those of the clients' clock, because the clock of another kernel may differ. They
// start with the first effect on clients, because in an emulated guest the command that injects the fault takes
// seconds.
func stopAll(t *testing.T, all []client) (outcomes []outcome) {
	t.Helper()
	var first time.Time
	for _, c := range all {
		s, err := c.Stop()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range s.Results {
			if !r.OK() && (first.IsZero() || r.Sent.Before(first)) {
				first = r.Sent
			}
		}
		outcomes = append(outcomes, outcome{name: c.name, summary: s})
	}
	for i := range outcomes {
		o := &outcomes[i]
		for _, r := range o.summary.Results {
			if r.Sent.Before(first) {
				continue
			}
			o.sent++
			if !r.OK() {
				o.failed, o.last = o.failed+1, r.Sent.Sub(first)+*every
			}
		}
	}
	return outcomes
}

func portOf(at netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr(), port)
}
