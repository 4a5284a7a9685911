package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab/guest"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/kubenode"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Node is a machine of the cluster, with the name of its Node object.
type Node struct {
	Machine
	APIAddr netip.Addr
	PodCIDR netip.Prefix

	PodCIDR6 netip.Prefix

	mu      sync.Mutex
	off     bool
	kubelet *process.Process
	speaker *process.Process
	bgp     *process.Process
	kube    *kubenode.Node // with Config.Kubelets; else nil
	vm      *guest.Guest   // the node's own virtual machine; else nil
}

func nodeNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, nodeName(i))
	}
	return names
}

func nodeName(i int) string { return fmt.Sprintf("node%d", i+1) }

// Node returns the i-th node, from 0.
func (c *Cluster) Node(i int) *Node { return c.Nodes[i] }

// NodeByName returns the node of that name, or nil.
func (c *Cluster) NodeByName(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// newNode assigns names and addresses to the i-th node.
func (c *Cluster) newNode(i int) *Node {
	n := &Node{
		Machine: *c.machine(nodeName(i), nth(lan, 11+i)),
		APIAddr: nth(api, 11+i),
		PodCIDR: netip.PrefixFrom(nth(podRange, 16*i), 28),

		PodCIDR6: sixes(netip.PrefixFrom(nth(podRange, 16*i), 28)),
	}
	if c.cfg.Kubelets != nil {
		n.PodCIDR, n.PodCIDR6 = kubeletPods(i)
	}
	return n
}

const podBridge = "pods0"

// make creates the node's namespace: a link to the LAN and one to the API server, a bridge for its Pods, and routes to
// the other nodes' Pods.
func (n *Node) make(s *script) {
	n.c.onLAN(s, &n.Machine)
	s.batch(n.c.ns("net"),
		"link add "+n.port(apiBridge)+" type veth peer name api0 address "+mac(n.APIAddr)+" netns "+n.Namespace,
		"link set "+n.port(apiBridge)+" master "+apiBridge+" up")
	n.setUp(s)
}

// setUp sets up the node's namespace, except its link to the LAN.
func (n *Node) setUp(s *script) {
	lines := []string{
		"addr add " + in(api, n.APIAddr) + " dev api0", "link set api0 up",
		"route add default via " + router.String(), "route add default via " + six(router).String(),
	}
	if n.c.cfg.Kubelets == nil {
		// With an address of its own: otherwise the bridge takes the lowest one of its ports, so that a new Pod would
		// change the address of the gateway, and the other Pods would lose it for seconds.
		lines = append(lines, "link add "+podBridge+" address "+mac(n.gateway())+" type bridge mcast_snooping 0",
			"addr add "+in(n.PodCIDR, n.gateway())+" dev "+podBridge, "link set "+podBridge+" up",
			// The bridge has only its own range; the others' are routed.
			"addr add "+netip.PrefixFrom(six(n.gateway()), n.PodCIDR6.Bits()).String()+" dev "+podBridge+" nodad")
	}
	for _, other := range n.c.Nodes {
		if other != n {
			lines = append(lines, "route add "+other.PodCIDR.String()+" via "+other.Addr.String(),
				"route add "+other.PodCIDR6.String()+" via "+other.Addr6.String())
		}
	}
	s.batch(n.Namespace, lines...)
	// As on every node with a bridge for its Pods (required by kubeadm, too): replies between two Pods must pass the
	// node's netfilter hooks.
	s.line("modprobe -q br_netfilter || [ -e /proc/sys/net/bridge ]")
	s.line("ip netns exec %s sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1", n.Namespace)
	s.line("ip netns exec %s sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1", n.Namespace)
}

// gateway of the node's Pods.
func (n *Node) gateway() netip.Addr { return nth(n.PodCIDR, 1) }

// startNodes creates the Node objects, starts their agents and the Pods' loop, and waits until all are Ready.
func (c *Cluster) startNodes(ctx context.Context) error {
	if c.cfg.Kubelets != nil {
		return c.startKubelets(ctx)
	}
	c.printf("waiting for %d nodes to be Ready", len(c.Nodes))
	for _, n := range c.Nodes {
		if err := n.register(ctx); err != nil {
			return err
		}
		if err := n.startKubelet(ctx); err != nil {
			return err
		}
	}
	c.runPods()
	for _, n := range c.Nodes {
		if err := n.WaitReady(ctx, agentLimit, corev1.ConditionTrue); err != nil {
			return err
		}
	}
	return nil
}

// register creates the Node object.
func (n *Node) register(ctx context.Context) error {
	var ranges []string
	for _, p := range n.podCIDRs() {
		ranges = append(ranges, p.String())
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   n.Name,
			Labels: map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"},
		},
		Spec: corev1.NodeSpec{PodCIDR: ranges[0], PodCIDRs: ranges},
	}
	if _, err := n.c.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make Node %s: %w", n.Name, err)
	}
	return nil
}

// startKubelet starts the node's agent.
func (n *Node) startKubelet(ctx context.Context) error {
	kubeconfig, err := n.c.cp.NodeKubeconfig(n.Name)
	if err != nil {
		return err
	}
	argv := []string{
		n.c.build.Path("labkubelet"), "-kubeconfig", kubeconfig, "-node", n.Name, "-addresses", n.Addr.String() + "," + n.Addr6.String(),
	}
	if n.c.cfg.Heartbeat > 0 {
		argv = append(argv, "-period", n.c.cfg.Heartbeat.String())
	}
	p, err := n.Start(ctx, "labkubelet", host.Cmd{Argv: argv})
	if err != nil {
		return err
	}
	n.c.watch(p)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kubelet = p
	return nil
}

// watch makes Err report an unexpected end of p.
func (c *Cluster) watch(p *process.Process) {
	go func() {
		<-p.Done()
		c.fail(p.Err())
	}()
}

// WaitReady waits until the node's Ready condition has the given status.
func (n *Node) WaitReady(ctx context.Context, limit time.Duration, status corev1.ConditionStatus) error {
	return n.c.Eventually(ctx, limit, fmt.Sprintf("%s is Ready: %s", n.Name, status), func(ctx context.Context) error {
		node, err := n.c.Kube.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				if c.Status == status {
					return nil
				}
				return fmt.Errorf("it is %s (%s: %s)", c.Status, c.Reason, c.Message)
			}
		}
		return errors.New("it has no Ready condition")
	})
}

// CutAPI detaches the node's port from the API switch. The node observes no change of its link.
func (n *Node) CutAPI(ctx context.Context) error { return n.cut(ctx, apiBridge) }

// RestoreAPI reverts CutAPI.
func (n *Node) RestoreAPI(ctx context.Context) error { return n.restore(ctx, apiBridge) }

// StopKubelet ends the node's agent, so that the node is soon not Ready. All other processes on it keep running.
func (n *Node) StopKubelet() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kube != nil {
		return n.kube.StopKubelet(n.c.life)
	}
	return n.kubelet.Stop(5 * time.Second)
}

// StartKubelet restarts the agent.
func (n *Node) StartKubelet(ctx context.Context) error {
	if n.kube != nil {
		return n.kube.StartKubelet(ctx)
	}
	return n.startKubelet(ctx)
}

// Unplug cuts all links of the node at once, without a change of carrier.
func (n *Node) Unplug(ctx context.Context) error {
	return n.onSwitch(ctx,
		"link set "+n.port(lanBridge)+" nomaster",
		"link set "+n.port(apiBridge)+" nomaster")
}

// PowerOff cuts all links of the node at once, without a change of carrier, and then kills every process on it and in
// its Pods: none can send a goodbye.
func (n *Node) PowerOff(ctx context.Context) error {
	if n.kube != nil {
		return n.powerOffKubelet(ctx)
	}
	if n.vm != nil {
		return fmt.Errorf("power off %s: %w", n.Name, errIsVM)
	}
	n.c.pods.mu.Lock()
	defer n.c.pods.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.Unplug(ctx); err != nil {
		return err
	}
	n.off = true
	errs := []error{n.kubelet.Kill(), n.c.pods.killOn(n)}
	for _, p := range []*process.Process{n.speaker, n.bgp} {
		if p != nil {
			errs = append(errs, p.Kill())
		}
	}
	var s script
	s.line("for pid in $(ip netns pids %s); do kill -KILL $pid 2>/dev/null || true; done", n.Namespace) // it may have ended
	errs = append(errs, s.run(ctx, n.host))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("power off %s: %w", n.Name, err)
	}
	return nil
}

// PowerOn starts a powered-off node as a new one with the same name and addresses: its kernel has no residual state.
// Its agent and its Pods start; its speaker does not.
func (n *Node) PowerOn(ctx context.Context) error {
	if n.kube != nil {
		return n.powerOnKubelet(ctx)
	}
	n.c.pods.mu.Lock()
	n.mu.Lock()
	var s script
	s.batch(n.c.ns("net"), "link del "+n.port(lanBridge), "link del "+n.port(apiBridge))
	n.c.pods.reset(n, &s)
	s.line("ip netns del %s", n.Namespace)
	n.make(&s)
	err := s.run(ctx, n.host)
	if err == nil {
		n.off, n.speaker, n.bgp = false, nil, nil
	}
	n.mu.Unlock()
	n.c.pods.mu.Unlock()
	if err != nil {
		return fmt.Errorf("power on %s: %w", n.Name, err)
	}
	n.c.pods.Trigger()
	return n.startKubelet(ctx)
}

// Leave removes the node from the cluster: it is powered off and has no Node object, as before it joined.
func (n *Node) Leave(ctx context.Context) error {
	if err := n.PowerOff(ctx); err != nil {
		return err
	}
	if err := n.c.Kube.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete Node %s: %w", n.Name, err)
	}
	return nil
}

// Join reverts Leave, as a new node: it has neither labels nor a speaker.
func (n *Node) Join(ctx context.Context) error {
	if err := n.register(ctx); err != nil {
		return err
	}
	if err := n.PowerOn(ctx); err != nil {
		return err
	}
	return n.WaitReady(ctx, agentLimit, corev1.ConditionTrue)
}
