// Package scenario disturbs a cluster in a lab while a client outside of it keeps connections, and counts those that
// break. Six Pods on three nodes are behind one Service with an address of each family; a fourth node joins later. All
// counts are the client's (package connections). The owner of the address is the station that answers ARP and
// neighbor discovery of a watcher on the LAN.
package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Modes of forwarding.
const (
	Pod       = "pod"
	Direct    = "direct"
	KubeProxy = "kube-proxy" // for the address that IronLB announces; its mode is that of the data plane
)

// Modes lists them.
var Modes = []string{Pod, Direct, KubeProxy}

const (
	hosts    = 3 // nodes with Pods
	pods     = 6
	port     = 90
	patience = time.Minute
	calm     = time.Second     // time with one owner until the state is settled
	grace    = 5 * time.Second // of the seventh Pod
	seventh  = "p7"
	service  = "web"
)

// Data planes, as in the speaker's configuration.
const (
	NFTables = "nftables"
	IPVS     = "ipvs"
)

// Config of a run.
type Config struct {
	Mode string
	// DataPlane of the speakers; "" is NFTables. IPVS takes a guest where this kernel has none.
	DataPlane string
	BGP       bool          // to a router with equal-cost routes and the client behind it; else on the client's LAN
	Conns     int           // established connections
	Every     time.Duration // between two lines of a connection
	Open      time.Duration // between two connections that are opened in addition
	Bound     time.Duration // an answer that takes longer is missing
	Watch     time.Duration // for which connections are observed after the effect of a fault
	// Disturb makes one node differ from the others during each fault: the owner, or the first of several next hops. It
	// is "" (not), Slots or Conntrack.
	Disturb  string
	Sync     bool // with IPVS: the kernel's sync daemons run on each node
	Keep     bool // all that the client observed stays in the lab's logs
	Progress io.Writer
}

// Bench is a lab with the Service.
type Bench struct {
	Cluster *lab.Cluster
	cfg     Config
	watcher owners
	routed  *routed // with Config.BGP
	targets []netip.AddrPort
	on      map[string]*lab.Node // of each Pod
	up      map[*lab.Node]bool   // nodes that take part
	proxies map[*lab.Node]*process.Process
	next    int // the client's next port
}

// Lab returns the lab of a run.
func Lab(cfg Config) lab.Config {
	kernel := lab.Native
	if cfg.DataPlane == IPVS {
		kernel = lab.Auto
	}
	return lab.Config{
		Nodes: hosts + 1, Kernel: kernel, BGP: cfg.BGP, KubeProxy: cfg.Mode == KubeProxy, Progress: cfg.Progress,
	}
}

const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [%q, %q]}
---
apiVersion: ironlb.io/v1alpha1
kind: %s
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
`

const serviceObject = `
apiVersion: v1
kind: Service
metadata: {name: %s, annotations: {ironlb.io/forwarding: %q}}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{name: echo, port: %d, targetPort: echo}]
`

// Use starts everything in a lab.
func Use(ctx context.Context, c *lab.Cluster, cfg Config) (b *Bench, err error) {
	b = &Bench{
		Cluster: c, cfg: cfg, on: map[string]*lab.Node{}, up: map[*lab.Node]bool{},
		proxies: map[*lab.Node]*process.Process{}, next: rand.IntN(1 << 16),
	}
	if err := os.WriteFile(b.speakerConfig(), []byte("dataplane: "+cmp.Or(cfg.DataPlane, NFTables)+"\n"), 0o600); err != nil {
		return b, err
	}
	flags := []string{"--leader-elect=false"}
	if cfg.Mode == KubeProxy {
		flags = append(flags, "--ip-mode", "VIP") // kube-proxy serves the address, and the speaker announces it
	}
	if _, err := c.StartCCM(ctx, flags...); err != nil {
		return b, err
	}
	if err := c.Node(hosts).Leave(ctx); err != nil {
		return b, err
	}
	for _, n := range c.Nodes[:hosts] {
		if err := b.startNode(ctx, n); err != nil {
			return b, err
		}
	}
	for i := range pods {
		if err := b.addPod(ctx, fmt.Sprintf("p%d", i+1), c.Node(i%hosts)); err != nil {
			return b, err
		}
	}
	kind := "L2Advertisement"
	if cfg.BGP {
		kind = "BGPAdvertisement"
	}
	if err := c.ApplyYAML(ctx, fmt.Sprintf(objects, lab.FreeRange, lab.FreeRange6, kind)); err != nil {
		return b, err
	}
	if err := b.serve(ctx); err != nil {
		return b, err
	}
	if cfg.BGP {
		b.routed, err = b.startRouter(ctx)
		return b, err
	}
	b.watcher, err = b.watch(ctx)
	return b, err
}

// Close ends what is not part of the lab.
func (b *Bench) Close() error {
	var errs []error
	if b.watcher != nil {
		errs = append(errs, b.watcher.Close())
	}
	if b.routed != nil {
		errs = append(errs, b.routed.Stop())
	}
	return errors.Join(errs...)
}

func (b *Bench) speakerConfig() string { return filepath.Join(b.Cluster.Dir, "speaker.yaml") }

// startNode starts the programs of a node that are not running.
func (b *Bench) startNode(ctx context.Context, n *lab.Node) error {
	b.up[n] = true
	if p := b.proxies[n]; b.cfg.Mode == KubeProxy && (p == nil || !p.Running()) {
		argv, err := b.kubeProxy(ctx, n)
		if err != nil {
			return err
		}
		if b.proxies[n], err = n.Start(ctx, "kube-proxy", host.Cmd{Argv: argv}); err != nil {
			return err
		}
	}
	if p := n.Speaker(); p == nil || !p.Running() {
		if err := n.StartSpeaker(ctx, "--config", b.speakerConfig()); err != nil {
			return err
		}
	}
	if b.cfg.Sync {
		return b.sync(ctx, n)
	}
	return nil
}

// kubeProxy returns the command of kube-proxy on a node.
func (b *Bench) kubeProxy(ctx context.Context, n *lab.Node) ([]string, error) {
	var ranges []string
	for _, r := range lab.PodRanges {
		ranges = append(ranges, r.String())
	}
	return n.KubeProxyArgv(ctx, cmp.Or(b.cfg.DataPlane, NFTables), lab.KubeProxyConfig{
		"clusterCIDR": strings.Join(ranges, ","),
		// Mode ipvs assigns the addresses to each node, whose kernel must not answer for them.
		"ipvs": map[string]any{"strictARP": true},
	})
}

// powerOff cuts the power of a node, powerOn restores it.
func (b *Bench) powerOff(ctx context.Context, n *lab.Node) error {
	delete(b.up, n)
	return n.PowerOff(ctx)
}

func (b *Bench) powerOn(ctx context.Context, n *lab.Node) error {
	if err := n.PowerOn(ctx); err != nil {
		return err
	}
	return b.startNode(ctx, n)
}

func (b *Bench) addPod(ctx context.Context, name string, n *lab.Node) error {
	b.on[name] = n
	spec := lab.PodSpec{Name: name, Node: n, Labels: map[string]string{"app": "web"}}
	if name == seventh {
		spec.Grace = grace
	}
	_, err := b.Cluster.AddPod(ctx, spec)
	return err
}

func (b *Bench) removePod(ctx context.Context, name string) error {
	delete(b.on, name)
	return b.Cluster.RemovePod(ctx, metav1.NamespaceDefault, name)
}

// serve creates the Service and waits for its addresses.
func (b *Bench) serve(ctx context.Context) error {
	forwarding := b.cfg.Mode
	if forwarding == KubeProxy {
		forwarding = Pod
	}
	if err := b.Cluster.ApplyYAML(ctx, fmt.Sprintf(serviceObject, service, forwarding, port)); err != nil {
		return err
	}
	return b.Cluster.Eventually(ctx, patience, "the Service has its addresses", func(ctx context.Context) error {
		svc, err := b.Cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return err
		}
		b.targets = nil
		for _, in := range svc.Status.LoadBalancer.Ingress {
			addr, err := netip.ParseAddr(in.IP)
			if err != nil {
				return err
			}
			b.targets = append(b.targets, netip.AddrPortFrom(addr, port))
		}
		if len(b.targets) != 2 {
			return fmt.Errorf("it has %v", b.targets)
		}
		return nil
	})
}
