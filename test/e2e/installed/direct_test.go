package installed

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/connections"
	"github.com/ironlb/ironlb/test/rare"
)

const (
	directKept  = 120  // connections of each client, over all addresses
	directLater = 40   // at least, opened after a fault
	directMTU   = 1450 // of the LAN, without the headers of a tunnel
)

// TestDirect: with forwarding direct, under the permissions of the chart, the Pods of all nodes see the client's
// address under either traffic policy and answer through their own node, and no connection breaks while the address
// moves or a speaker is replaced. The nodes filter by reverse path, as some distributions do.
func TestDirect(t *testing.T) {
	cluster.Need(t)
	serve(t)
	strictReversePath(t)
	targets := serveDirect(t)
	waitDirect(t, len(targets))
	t.Run("forged", func(t *testing.T) { forge(t, targets) })
	for _, fault := range []struct {
		name string
		do   func(t *testing.T, owner *lab.Node, addr netip.Addr)
	}{
		{"planned move", func(t *testing.T, owner *lab.Node, addr netip.Addr) {
			t.Cleanup(func() {
				if err := owner.Uncordon(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			})
			if err := owner.Cordon(t.Context()); err != nil {
				t.Fatal(err)
			}
			waitMoved(t, owner, addr)
		}},
		{"ironlb-speaker Pod deleted", func(t *testing.T, owner *lab.Node, _ netip.Addr) { deletePod(t, owner, "ironlb-speaker") }},
	} {
		t.Run(strings.ReplaceAll(fault.name, " ", "_"), func(t *testing.T) {
			if fault.name == "planned move" {
				rare.Test(t)
			}
			cluster.Need(t)
			clients := []*directClient{connect(t, cluster.Client, targets), connect(t, cluster.Remote, targets)}
			owner := ownerOf(t, targets[0].Addr())
			did := connections.Fault{Began: time.Now()}
			fault.do(t, owner, targets[0].Addr())
			did.Done = time.Now()
			on := nodesOf(t, "app=web")
			for _, c := range clients {
				c.later(t, did)
				c.check(t, did, on)
			}
		})
	}
}

// forge sends a packet with a forged source to the end of a tunnel, from all Pods of another node, whose CNI gives them
// the address of their node for it. It reaches no Pod, as it would from the node itself.
func forge(t *testing.T, targets []netip.AddrPort) {
	const source = "192.0.2.66" // of no host on the LAN
	from, to := cluster.Node(0), cluster.Node(1)
	table := func(n *lab.Node, chain string) {
		t.Helper()
		t.Cleanup(func() {
			if _, err := n.Kubelet().Exec(context.WithoutCancel(t.Context()), "nft", "delete", "table", "ip", "test"); err != nil {
				t.Error(err)
			}
		})
		if _, err := n.Kubelet().Exec(t.Context(), "nft", "table ip test { chain c { "+chain+"; }; }"); err != nil {
			t.Fatal(err)
		}
	}
	table(from, fmt.Sprintf("type nat hook postrouting priority 100; ip saddr %v ip daddr %v masquerade", from.PodCIDR, to.Addr))
	table(to, "type filter hook forward priority -310; ip saddr "+source+" counter")
	counted := func(ctx context.Context) (string, error) {
		out, err := to.Kubelet().Exec(ctx, "nft", "list", "table", "ip", "test")
		_, out, _ = strings.Cut(out, "counter packets ")
		out, _, _ = strings.Cut(out, " ")
		return out, err
	}
	i := slices.IndexFunc(targets, func(a netip.AddrPort) bool { return a.Addr().Is4() })
	frame := forgedSYN(to.Addr, netip.MustParseAddr(source), targets[i])
	send := fmt.Sprintf("printf '%s' | dd bs=2k iflag=fullblock status=none > /dev/udp/%v/7949", frame, to.Addr)
	if out, err := from.Kubelet().Exec(t.Context(), "ip", "-all", "netns", "exec", "bash", "-c", send); err != nil || out == "" {
		t.Fatalf("send from all Pods: output %q, error %v", out, err)
	}
	if n, err := counted(t.Context()); err != nil || n != "0" {
		t.Errorf("%s forged packets reach Pods, error %v", n, err)
	}
	if _, err := from.Kubelet().Exec(t.Context(), "bash", "-c", send); err != nil {
		t.Fatal(err)
	}
	cluster.Await(t, 10*time.Second, "the packet of the node to be counted", func(ctx context.Context) error {
		n, err := counted(ctx)
		if err == nil && n != "1" {
			err = fmt.Errorf("%s were", n)
		}
		return err
	})
}

// forgedSYN returns a segment that opens a connection, in a frame for a node's first tunnel (RFC 7348), for printf.
func forgedSYN(node, from netip.Addr, to netip.AddrPort) (octets string) {
	header := append(append([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0}, from.AsSlice()...), to.Addr().AsSlice()...)
	segment := []byte{0x9c, 0x40, 0, byte(to.Port()), 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0}
	pseudo := append(append(header[12:20:20], 0, 6, 0, 20), segment...)
	checksum := func(of []byte) uint16 { // RFC 1071
		var sum uint32
		for i, octet := range of {
			sum += uint32(octet) << (8 * uint(1-i%2))
		}
		return ^uint16(sum + sum>>16)
	}
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	binary.BigEndian.PutUint16(segment[16:], checksum(pseudo))
	frame := append([]byte{8, 0, 0, 0, 0, 0, 1, 0, 0x02, 0x4c}, node.AsSlice()...) // the hardware address of the tunnel
	frame = append(append(append(frame, 2, 0, 0, 0, 0, 1, 8, 0), header...), segment...)
	for _, octet := range frame {
		octets += fmt.Sprintf(`\x%02x`, octet)
	}
	return octets
}

// strictReversePath sets rp_filter to 1 for all interfaces of every node, until the end of the test.
func strictReversePath(t *testing.T) {
	t.Helper()
	const name = "net.ipv4.conf.all.rp_filter"
	for _, n := range cluster.Nodes {
		was, err := n.Exec(t.Context(), "sysctl", "-n", name)
		if err != nil {
			t.Fatal(err)
		}
		set := func(ctx context.Context, value string) {
			if _, err := n.Exec(ctx, "sysctl", "-qw", name+"="+value); err != nil {
				t.Error(err)
			}
		}
		set(t.Context(), "1")
		t.Cleanup(func() { set(context.WithoutCancel(t.Context()), strings.TrimSpace(was)) })
	}
}

// serveDirect creates the Services until the end of the test, and returns their addresses.
func serveDirect(t *testing.T) (targets []netip.AddrPort) {
	t.Helper()
	const file = "test/e2e/installed/testdata/direct.yaml"
	t.Cleanup(func() {
		for _, args := range [][]string{{"delete", "services", "-l", "test=direct"}, {"delete", "-f", file, "--ignore-not-found"}} {
			if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), append(args, "--timeout=60s")...); err != nil {
				t.Error(err)
			}
		}
	})
	kubectl(t, "apply", "-f", file)
	cluster.Await(t, time.Minute, "each Service to get addresses of both families", func(ctx context.Context) error {
		services, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "test=direct"})
		if err != nil {
			return err
		}
		targets = nil
		for _, s := range services.Items {
			for _, ingress := range s.Status.LoadBalancer.Ingress {
				addr, err := netip.ParseAddr(ingress.IP)
				if err != nil {
					return err
				}
				targets = append(targets, netip.AddrPortFrom(addr, uint16(s.Spec.Ports[0].Port)))
			}
		}
		if len(targets) != 2*len(services.Items) {
			return fmt.Errorf("%d Services have %v", len(services.Items), targets)
		}
		return nil
	})
	return targets
}

// waitDirect waits until every speaker reports its tunnels, and so many virtual servers that it forwards directly.
func waitDirect(t *testing.T, virtualServers int) {
	t.Helper()
	cluster.Await(t, time.Minute, "every speaker to forward directly", func(ctx context.Context) error {
		var all v1alpha1.SpeakerStatusList
		if err := cluster.Objects.List(ctx, &all); err != nil {
			return err
		}
		if len(all.Items) != len(cluster.Nodes) {
			return fmt.Errorf("there are %d SpeakerStatuses", len(all.Items))
		}
		for _, s := range all.Items {
			tunnels := s.Status.Tunnels
			if tunnels == nil || !tunnels.Available || tunnels.MTU != directMTU || int(tunnels.VirtualServers) != virtualServers {
				return fmt.Errorf("%s reports %+v", s.Name, tunnels)
			}
		}
		return nil
	})
}

// waitMoved waits until another node announces the address.
func waitMoved(t *testing.T, from *lab.Node, addr netip.Addr) {
	t.Helper()
	cluster.Await(t, time.Minute, "another node than "+from.Name+" to announce "+addr.String(), func(ctx context.Context) error {
		var vip v1alpha1.VirtualIP
		if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: addr.String()}, &vip); err != nil {
			return err
		}
		if n := cluster.NodeByName(vip.Status.Node); n == nil || n == from {
			return fmt.Errorf("it is %q", vip.Status.Node)
		}
		return nil
	})
}

// nodesOf returns the nodes of Pods, by the Pods' names.
func nodesOf(t *testing.T, selector string) map[string]*lab.Node {
	t.Helper()
	pods, err := cluster.Kube.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]*lab.Node{}
	for _, p := range pods.Items {
		on[p.Name] = cluster.NodeByName(p.Spec.NodeName)
	}
	return on
}

// directClient keeps connections, and opens others.
type directClient struct {
	*lab.Connections
	on      *lab.Machine
	targets []netip.AddrPort
}

// connect starts a client, and waits until its connections are established.
func connect(t *testing.T, on *lab.Machine, targets []netip.AddrPort) *directClient {
	t.Helper()
	c := startConnections(t, on, &connections.Client{
		Targets: targets, Kept: directKept, Every: 500 * time.Millisecond, Open: 50 * time.Millisecond, Lines: 3, Bound: 10 * time.Second,
	})
	c.wait(t, directKept, func(l connections.Life) bool { return l.Kept })
	return c
}

// usedPorts counts the ports of all clients. A used port would meet residual state of a connection that a fault broke:
// an entry of conntrack, or an open socket of a Pod.
var usedPorts int

func startConnections(t *testing.T, on *lab.Machine, config *connections.Client) *directClient {
	t.Helper()
	const most = 2000 // connections of a client
	config.Port = usedPorts
	usedPorts += most
	k, err := on.StartConnections(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return &directClient{k, on, config.Targets}
}

// later waits for connections that were opened after a fault.
func (c *directClient) later(t *testing.T, did connections.Fault) {
	t.Helper()
	c.wait(t, directLater, func(l connections.Life) bool { return l.Opened.After(did.Done) })
}

// wait waits until so many selected connections were answered.
func (c *directClient) wait(t *testing.T, want int, selected func(connections.Life) bool) {
	t.Helper()
	cluster.Await(t, time.Minute, fmt.Sprintf("%s to have answers on %d connections", c.on.Name, want), func(context.Context) error {
		lives, err := c.Lives()
		if err != nil {
			return err
		}
		have, broken := 0, ""
		for _, l := range lives {
			if l.Cause != connections.Unbroken {
				broken = fmt.Sprintf("; that to %v broke: %s (%s)", l.Target, l.Cause, l.Detail)
			}
			if selected(l) && !l.First.IsZero() {
				have++
			}
		}
		if have < want {
			return fmt.Errorf("on %d%s", have, broken)
		}
		return nil
	})
}

// check ends the client. No connection broke. All nodes served each address, the Pods saw the client's address, and
// each answered through its own node.
func (c *directClient) check(t *testing.T, did connections.Fault, on map[string]*lab.Node) {
	t.Helper()
	lives, _, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	count := connections.CountLives(lives, did)
	t.Logf("%s: %d connections established, %d opened during the fault, %d later; %s",
		c.on.Name, count.Established(), count.During.All, count.New.All, count)
	if count.Before+count.Elsewhere.Broken+count.During.Broken+count.New.Broken > 0 || count.Established() != directKept {
		t.Errorf("%s: of %d connections %d were established; broken: %d before the fault, %d established, %d in the fault, %d later",
			c.on.Name, directKept, count.Established(), count.Before, count.Elsewhere.Broken, count.During.Broken, count.New.Broken)
	}
	served := map[netip.AddrPort]map[*lab.Node]bool{}
	for _, target := range c.targets {
		served[target] = map[*lab.Node]bool{}
	}
	for _, l := range lives {
		if l.Pod == "" {
			continue // broken: counted above
		}
		if l.Kept && !l.Last.After(did.Done) {
			t.Errorf("%s: no answer on the connection to %v after the fault", c.on.Name, l.Target)
		}
		if l.Client != c.on.Addr.String() && l.Client != c.on.Addr6.String() {
			t.Errorf("%s: Pod %s saw %s as the client's address", c.on.Name, l.Pod, l.Client)
		}
		node := on[l.Pod]
		if node == nil {
			t.Fatalf("%s: an answer of %q, which is no Pod of the Service", c.on.Name, l.Pod)
		}
		served[l.Target][node] = true
		// A router is between the other client and the nodes.
		if from := l.Wire.From; c.on == cluster.Client && !slices.Equal(from, []string{node.MAC()}) {
			t.Errorf("%s: Pod %s on %s (%s) answered through %v", c.on.Name, l.Pod, node.Name, node.MAC(), from)
		}
	}
	for target, nodes := range served {
		if len(nodes) != len(cluster.Nodes) {
			t.Errorf("%s: Pods of %d of %d nodes answered at %v", c.on.Name, len(nodes), len(cluster.Nodes), target)
		}
	}
}
