package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/test/lab/controlplane"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/kubenode"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Kubelets makes nodes run containerd and a kubelet, with Pods from images, a scheduler, every controller, and CoreDNS.
type Kubelets struct {
	SingleStack bool      // IPv4 only
	KubeProxy   ProxyMode // as a DaemonSet; empty: none, and ClusterIPs need another service proxy
	Specs       []string  // of additional images to build and import, relative to the checkout

	References map[string]string // of those images, by their names; they override the specs
}

// ProxyMode is a mode of kube-proxy.
type ProxyMode string

const (
	ProxyNFTables ProxyMode = "nftables"
	ProxyIPTables ProxyMode = "iptables"
	ProxyIPVS     ProxyMode = "ipvs"
)

// Ranges of a cluster with kubelets, large enough for the Pods and Services of upstream's tests.
var (
	kubeletPodRange   = netip.MustParsePrefix("10.244.0.0/16")
	kubeletPodRange6  = netip.MustParsePrefix("2001:db8:0:3::/64")
	kubeletClusterIPs = netip.MustParsePrefix("10.96.0.0/16")
	clusterDNS        = netip.MustParseAddr("10.96.0.10")
)

// remoteAPI is Remote's address on the API network, where a test program on Remote connects to the API server.
var remoteAPI = nth(api, 100)

const kubeletProgram = "test/lab/cmd/labnode"

// kubeletPackages are required Debian packages, by a program of each.
var kubeletPackages = map[string]string{"runc": "runc", "/usr/lib/cni/ptp": "containernetworking-plugins", "nsenter": "util-linux", "pgrep": "procps"}

// kubeletPrograms returns the pinned programs of such a cluster, including those of its images.
func (c *Cluster) kubeletPrograms() []string {
	names := append([]string{controlplane.Scheduler, "coredns", helm}, kubenode.Programs...)
	if c.cfg.Kubelets.KubeProxy != "" {
		names = append(names, "kube-proxy")
	}
	return names
}

// kubeletPods returns the ranges of the i-th node's Pods.
func kubeletPods(i int) (v4, v6 netip.Prefix) {
	a4, a6 := kubeletPodRange.Addr().As4(), kubeletPodRange6.Addr().As16()
	a4[2], a6[9] = byte(i+1), byte(i+1)
	return netip.PrefixFrom(netip.AddrFrom4(a4), 24), netip.PrefixFrom(netip.AddrFrom16(a6), 80)
}

// services returns the ranges of ClusterIPs.
func (c *Cluster) services() []netip.Prefix {
	if c.cfg.Kubelets != nil && c.cfg.Kubelets.SingleStack {
		return []netip.Prefix{c.cfg.Services}
	}
	return []netip.Prefix{c.cfg.Services, clusterIPs6}
}

// podCIDRs returns the ranges of the node's Pods.
func (n *Node) podCIDRs() []netip.Prefix {
	if k := n.c.cfg.Kubelets; k != nil && k.SingleStack {
		return []netip.Prefix{n.PodCIDR}
	}
	return []netip.Prefix{n.PodCIDR, n.PodCIDR6}
}

// addresses returns the node's addresses on the LAN.
func (n *Node) addresses() []netip.Addr {
	if k := n.c.cfg.Kubelets; k != nil && k.SingleStack {
		return []netip.Addr{n.Addr}
	}
	return []netip.Addr{n.Addr, n.Addr6}
}

// routePods adds the router's routes to Pods, and a link from Remote to the API server.
func (c *Cluster) routePods(s *script) {
	var lines []string
	for _, n := range c.Nodes {
		lines = append(lines, "route add "+n.PodCIDR.String()+" via "+n.Addr.String(), "route add "+n.PodCIDR6.String()+" via "+n.Addr6.String())
	}
	s.batch(c.Router.Namespace, lines...)
	s.batch(c.ns("net"),
		"link add "+c.Remote.port(apiBridge)+" type veth peer name api0 netns "+c.Remote.Namespace,
		"link set "+c.Remote.port(apiBridge)+" master "+apiBridge+" up")
	s.batch(c.Remote.Namespace, "addr add "+in(api, remoteAPI)+" dev api0", "link set api0 up")
}

// startKubelets boots the nodes and waits until all are Ready and the cluster's own Pods run.
func (c *Cluster) startKubelets(ctx context.Context) error {
	if err := c.routeManagement(ctx); err != nil {
		return err
	}
	if c.Kernel == Native {
		if err := c.keepSysctls(); err != nil {
			return err
		}
	}
	c.printf("booting %d nodes: containerd, kubelet, images", len(c.Nodes))
	for _, n := range c.Nodes {
		if err := n.register(ctx); err != nil {
			return err
		}
		var err error
		if n.kube, err = n.newKubelet(c.images); err != nil {
			return err
		}
		c.onClose(func() error { return n.kube.PowerOff(context.WithoutCancel(c.life)) })
	}
	group, gctx := errgroup.WithContext(ctx) // nothing returns before its end: a PowerOff finds what Boot has started
	for _, n := range c.Nodes {
		group.Go(func() error { return n.kube.Boot(gctx) })
	}
	group.Go(func() error { return c.applyAddons(gctx) })
	if err := group.Wait(); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := n.WaitReady(ctx, c.limit(2*time.Minute), corev1.ConditionTrue); err != nil {
			return err
		}
	}
	return c.waitAddons(ctx)
}

// routeManagement adds the API server's routes to kubelets and Pods through the API network.
func (c *Cluster) routeManagement(ctx context.Context) error {
	var s script
	var lines []string
	for _, n := range c.Nodes {
		lines = append(lines, "route add "+n.Addr.String()+" via "+n.APIAddr.String(), "route add "+n.PodCIDR.String()+" via "+n.APIAddr.String())
	}
	s.batch(c.Management.Namespace, lines...)
	return s.run(ctx, c.Management.host)
}

func (n *Node) newKubelet(images []string) (*kubenode.Node, error) {
	credentials, err := n.c.cp.NodeKubeconfig(n.Name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(n.c.Dir, n.Name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return kubenode.New(kubenode.Config{
		Name:       n.Name,
		Host:       n.host,
		Namespace:  n.Namespace,
		Dir:        dir,
		Cgroup:     n.c.ns(n.Name),
		Program:    n.c.build.Path,
		Kubeconfig: credentials,
		ClientCA:   n.c.cp.ClientCA(),
		Addresses:  n.addresses(),
		PodCIDRs:   n.podCIDRs(),
		DNS:        clusterDNS,
		Sandbox:    sandboxImage,
		Images:     images,
		Start: func(ctx context.Context, name string, cmd host.Cmd) (*process.Process, error) {
			return n.c.startOn(n.host, n.Name, name, cmd)
		},
		Failed: n.c.fail,
	}), nil
}

// Kubelet returns the node's containerd and kubelet; nil without Config.Kubelets.
func (n *Node) Kubelet() *kubenode.Node { return n.kube }

func (n *Node) powerOffKubelet(ctx context.Context) error {
	if err := n.Unplug(ctx); err != nil {
		return err
	}
	if err := n.kube.PowerOff(ctx); err != nil {
		return fmt.Errorf("power off %s: %w", n.Name, err)
	}
	return nil
}

// powerOnKubelet boots the node with its previous disk.
func (n *Node) powerOnKubelet(ctx context.Context) error {
	var s script
	s.batch(n.c.ns("net"), "link del "+n.port(lanBridge), "link del "+n.port(apiBridge))
	s.line("ip netns del %s", n.Namespace)
	n.make(&s)
	if err := s.run(ctx, n.host); err != nil {
		return fmt.Errorf("power on %s: %w", n.Name, err)
	}
	return n.kube.Boot(ctx)
}

// sysctls that kubelets change for the entire machine.
var sysctls = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

// keepSysctls restores them at Close.
func (c *Cluster) keepSysctls() error {
	was := map[string][]byte{}
	for _, name := range sysctls {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return fmt.Errorf("read sysctl %s: %w", name, err)
		}
		was[name] = value
	}
	c.onClose(func() error {
		var errs []error
		for name, value := range was {
			if now, err := os.ReadFile("/proc/sys/" + name); err == nil && string(now) == string(value) {
				continue
			}
			errs = append(errs, os.WriteFile("/proc/sys/"+name, value, 0))
		}
		return errors.Join(errs...)
	})
	return nil
}

// joined returns a list of prefixes as programs expect it.
func joined(prefixes []netip.Prefix) string {
	var text []string
	for _, p := range prefixes {
		text = append(text, p.String())
	}
	return strings.Join(text, ",")
}
