package lab

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// Faults in machine.go and node.go: CutLAN, CutAPI, LinkDown, PowerOff, KillSpeaker, StopSpeaker, and Pause and Resume
// of a process.

// StopAPIServer kills the API server, as in a crash.
func (c *Cluster) StopAPIServer() error { return c.cp.StopAPIServer() }

// StartAPIServer reverts StopAPIServer and waits until the server is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error { return c.cp.StartAPIServer(ctx) }

// faultTable is the LAN switch's table that drops frames.
const faultTable = "bridge lab"

// Loss is a share of frames lost on the LAN switch, from one machine to another.
type Loss struct {
	From    *Machine // nil: every machine
	To      *Machine
	Percent int // 100: all
}

// Lose makes the LAN switch drop frames, broadcasts and multicasts included, until Pass. It replaces the losses of an
// earlier Lose.
func (c *Cluster) Lose(ctx context.Context, losses ...Loss) error {
	var s script
	s.line("ip netns exec %s nft -f - <<'END'", c.ns("net"))
	s.line("add table %[1]s\ndelete table %[1]s\ntable %[1]s {\n chain forward {\n  type filter hook forward priority 0", faultTable)
	for _, l := range losses {
		some := fmt.Sprintf(" numgen random mod 100 < %d", l.Percent)
		if l.Percent >= 100 {
			some = ""
		}
		from := ""
		if l.From != nil {
			from = fmt.Sprintf("iifname %q ", l.From.port(lanBridge))
		}
		s.line("  %soifname %q%s drop", from, l.To.port(lanBridge), some)
	}
	s.line(" }\n}\nEND")
	if err := s.run(ctx, c.kernel); err != nil {
		return fmt.Errorf("lose frames on the LAN: %w", err)
	}
	return nil
}

// Pass reverts Lose.
func (c *Cluster) Pass(ctx context.Context) error { return c.Lose(ctx) }

// AmongNodes returns a loss of frames of every kind between every two nodes, in both directions.
func (c *Cluster) AmongNodes(percent int) []Loss {
	var all []Loss
	for _, from := range c.Nodes {
		for _, to := range c.Nodes {
			if from != to {
				all = append(all, Loss{&from.Machine, &to.Machine, percent})
			}
		}
	}
	return all
}

// SetNodeNetwork sets the node's InternalIP to its address on the API server's network, as with a separate node
// network, or restores its addresses on the LAN. The node's agent does not change it.
func (n *Node) SetNodeNetwork(ctx context.Context, apart bool) error {
	addresses := []netip.Addr{n.Addr, n.Addr6}
	if apart {
		addresses = []netip.Addr{n.APIAddr}
	}
	nodes := n.c.Kube.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Addresses = nil
		for _, a := range addresses {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("set the addresses of node %s: %w", n.Name, err)
	}
	return nil
}

// Cordon marks the node as kubectl drain does before it evicts; Uncordon reverts this.
func (n *Node) Cordon(ctx context.Context) error {
	return n.patch(ctx, `{"spec":{"unschedulable":true}}`)
}
func (n *Node) Uncordon(ctx context.Context) error {
	return n.patch(ctx, `{"spec":{"unschedulable":null}}`)
}

// Exclude sets the label that excludes the node from load balancers; Include removes it.
func (n *Node) Exclude(ctx context.Context) error {
	return n.patch(ctx, `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"true"}}}`)
}

// Include reverts Exclude.
func (n *Node) Include(ctx context.Context) error {
	return n.patch(ctx, `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":null}}}`)
}

func (n *Node) patch(ctx context.Context, patch string) error {
	if _, err := n.c.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("mark node %s: %w", n.Name, err)
	}
	return nil
}

// Port is a port of the LAN switch with an interface without an address. The kernel sends nothing there; a test writes
// and reads all frames itself.
type Port struct {
	Namespace, Interface string
}

// AskFrom and AskFrom6 are unused ranges of the LAN: a test may send requests from these addresses on a bare port.
var (
	AskFrom  = netip.MustParsePrefix("192.0.2.192/26")
	AskFrom6 = sixes(AskFrom)
)

// AddPort makes a bare port; name has at most ten characters.
func (c *Cluster) AddPort(ctx context.Context, name string) (Port, error) {
	p := Port{Namespace: c.ns("net"), Interface: name}
	var s script
	s.batch(p.Namespace,
		"link add "+lanBridge+"-"+name+" type veth peer name "+name,
		"link set "+lanBridge+"-"+name+" master "+lanBridge+" up")
	s.line("ip netns exec %s sysctl -qw net.ipv6.conf.%s.disable_ipv6=1", p.Namespace, name)
	s.batch(p.Namespace, "link set "+name+" arp off", "link set "+name+" up")
	if err := s.run(ctx, c.kernel); err != nil {
		return Port{}, fmt.Errorf("add port %s to the LAN: %w", name, err)
	}
	return p, nil
}

// MAC of the machine's interface on the LAN, as ip writes it. A rebuilt machine keeps it.
func (m *Machine) MAC() string { return mac(m.Addr) }
