package failover

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/nodecheck"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/rare"
)

// TestTwoInterfacesInOneSubnet: with a strict reverse path filter, the kernel drops packets that arrive on another
// interface than that of its route to the client. So that one alone answers for the addresses, every request is served,
// and the condition names it.
func TestTwoInterfacesInOneSubnet(t *testing.T) {
	rare.Test(t)
	const subnets = "192.0.2.0/24 is on %[1]s and %[2]s, and the kernel's route to it leads through %[1]s; " +
		"2001:db8:0:1::/64 is on %[1]s and %[2]s, and the kernel's route to it leads through %[1]s: "
	s, owners := serving(t, 1)
	v := s.vips[0]
	node := owners[v.service]
	onlyCandidate(t, v, node)
	for _, c := range []struct{ route, other string }{{"eth0", "eth1"}, {"eth1", "eth0"}} {
		t.Run("route of "+c.route, func(t *testing.T) {
			s.settled("with one interface")
			secondInterface(t, node, c.route)
			out, err := node.Exec(t.Context(), "cat", "/sys/class/net/"+c.route+"/address")
			if err != nil {
				t.Fatal(err)
			}
			mac := strings.TrimSpace(out)

			message := fmt.Sprintf(subnets, c.route, c.other)
			cluster.Await(t, patience, "condition OneInterfacePerSubnet names "+c.route, func(ctx context.Context) error {
				var status v1alpha1.SpeakerStatus
				if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: node.Name}, &status); err != nil {
					return err
				}
				got := meta.FindStatusCondition(status.Status.Conditions, nodecheck.OneInterfacePerSubnet)
				if got == nil || got.Status != metav1.ConditionFalse || !strings.HasPrefix(got.Message, message) {
					return fmt.Errorf("it is %+v, want %s", got, message)
				}
				return nil
			})
			err = cluster.Eventually(t.Context(), patience, c.route+" alone answers", func(context.Context) error {
				now := time.Now()
				for a, owner := range s.w.Owners(now, calm) {
					if owner != mac {
						return fmt.Errorf("%v: seen %+v, want %s", a, s.w.Seen(a, now.Add(-calm), now), mac)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err) // the requests show the effect
			}
			since := time.Now()
			for _, a := range v.addrs {
				if failed := connectUncached(t, netip.AddrPortFrom(a, tcpPort)); len(failed) > 0 {
					t.Errorf("%d of 10 requests to %v failed: %q", len(failed), a, failed)
				}
			}
			for _, a := range v.addrs {
				if seen := s.seen(a, since, time.Now()); !slices.Equal(seen.All, []string{mac}) || seen.Duplicates > 0 {
					t.Errorf("%v is answered by %v, %d of %d questions twice, want %s",
						a, seen.All, seen.Duplicates, seen.Asked, mac)
				}
			}
		})
	}
}

// onlyCandidate excludes all other nodes until the end of the test: an owner that loses frames on an interface may hand
// over its addresses.
func onlyCandidate(t *testing.T, v vip, n *lab.Node) {
	t.Helper()
	for _, other := range cluster.Nodes[:candidates] {
		if other == n {
			continue
		}
		if err := label(t.Context(), other, "null"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := label(context.Background(), other, `"may-answer"`); err != nil {
				t.Error(err)
			}
		})
		listed(t, v, other, false)
	}
}

// secondInterface adds eth1 to the subnets of the node's eth0 until the end of the test, with a strict reverse path
// filter. The kernel's routes to the client lead through the named interface.
func secondInterface(t *testing.T, n *lab.Node, route string) {
	t.Helper()
	run := func(ctx context.Context, format string, args ...any) string {
		t.Helper()
		out, err := n.Exec(ctx, "sh", "-ec", fmt.Sprintf(format, args...))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const filter = "net.ipv4.conf.all.rp_filter"
	first := func(ctx context.Context, filtered string, metric4, metric6 int) {
		t.Helper()
		run(ctx, "sysctl -qw %s=%s; ip addr change %v/24 dev eth0 metric %d; "+
			"ip addr change %v/64 dev eth0 metric %d nodad", filter, filtered, n.Addr, metric4, n.Addr6, metric6)
	}
	was := strings.TrimSpace(run(t.Context(), "sysctl -n "+filter))
	t.Cleanup(func() { first(context.Background(), was, 0, 256) })
	if route == "eth0" {
		first(t.Context(), "1", 0, 256) // as of eth1: the first route is used
	} else {
		first(t.Context(), "1", 1024, 1024)
	}
	port, err := cluster.AddPort(t.Context(), "second")
	if err != nil {
		t.Fatal(err)
	}
	move := []string{"ip", "-n", port.Namespace, "link", "set", port.Interface, "netns", n.Namespace, "name", "eth1"}
	if _, err := host.Run(t.Context(), n.Host(), move...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run(context.Background(), "ip link del eth1") })
	run(t.Context(), "ip addr add 192.0.2.60/24 dev eth1; ip addr add 2001:db8:0:1::3c/64 dev eth1 nodad; "+
		"ip link set eth1 arp on up")
	routes := run(t.Context(), "ip route get %v; ip route get %v", cluster.Client.Addr, cluster.Client.Addr6)
	if strings.Count(routes, " dev "+route+" ") != 2 {
		t.Fatalf("the kernel's routes to the client do not lead through %s:\n%s", route, routes)
	}
}

// connectUncached connects ten times, each time with an empty neighbor cache of the client, and returns the errors.
func connectUncached(t *testing.T, to netip.AddrPort) (failed []string) {
	t.Helper()
	for range 10 {
		if _, err := cluster.Client.Exec(t.Context(), "ip", "neigh", "flush", "dev", "eth0"); err != nil {
			t.Fatal(err)
		}
		p := lab.Probe{Network: "line", Target: to, Count: 1, Timeout: 10 * time.Second}
		s, err := cluster.Client.Ask(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		failed = append(failed, s.Errors()...)
	}
	return failed
}
