package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/test/lab/controlplane"
	"github.com/ironlb/ironlb/test/lab/guest"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/tools"
)

// Kernel selects the kernel of the nodes' namespaces.
type Kernel string

const (
	Auto   Kernel = ""       // this machine's kernel if it has IPVS, else a guest's
	Native Kernel = "native" // this machine's kernel, with or without IPVS
	Guest  Kernel = "guest"
)

// Config of a cluster. The zero value is three nodes in a kernel with IPVS.
type Config struct {
	Nodes     int // 0: 3, at most 7
	Kernel    Kernel
	NodeGrace time.Duration // time without a heartbeat until a node is not Ready; 0: 4s, with Kubelets 50s
	// Heartbeat is the interval between renewals of a node's Lease; the controllers evaluate the nodes twice in it. 0:
	// 1s; Kubernetes' own is 10s. Only without Kubelets.
	Heartbeat time.Duration
	Bare      bool      // do not build the project's own programs nor apply its manifests
	KubeProxy bool      // build kube-proxy, for StartKubeProxy
	Programs  []string  // additional pinned programs to build (package tools), for Program
	BGP       bool      // run ironlb-bgpd with each speaker
	Kubelets  *Kubelets // run containerd and a kubelet on each node; nil: the lab's own agent
	// VirtualMachines is the number of nodes, the first ones, that run as virtual machines, each with links to the LAN
	// and the API server, and without Pods. The other nodes are then in this machine's kernel.
	VirtualMachines int
	// Contained runs IronLB's programs with the restrictions of a container, as far as possible: after "prepare", with
	// /proc/sys and, if the manifest requires it, the root file system read-only. The privileges are always those of
	// the manifest.
	Contained bool
	// Privileges changes a container's privileges from the manifest before it starts; nil: unchanged.
	Privileges func(*manifest.Privileges)
	APIServer  []string     // additional flags of kube-apiserver
	Services   netip.Prefix // ClusterIPs; zero: 203.0.113.0/25, which is enough for a hundred Services
	Progress   io.Writer    // a line for each long step; nil: silent
}

// Cluster is a lab that runs until Close.
type Cluster struct {
	Kube    kubernetes.Interface // as an administrator, from this process
	Objects client.Client        // the same, for IronLB's own kinds and all others
	Root    string               // the checkout's folder
	Dir     string               // scratch: logs, kubeconfigs; removed by Close
	Kernel  Kernel               // Native or Guest

	Nodes      []*Node
	Management *Machine // on this machine, with the API server
	Client     *Machine // on the LAN
	Remote     *Machine // behind the router
	Router     *Machine

	cfg      Config
	name     string // prefix of all names visible to others
	progress io.Writer
	log      *slog.Logger
	build    *tools.Build
	cp       *controlplane.ControlPlane
	kernel   host.Host
	guest    *guest.Guest
	life     context.Context // canceled by Close
	end      context.CancelFunc
	undo     []func() error // in the order of creation
	pods     *pods
	images   []string     // archives for nodes with kubelets
	plugin   func() error // builds kubectl-ironlb, once

	mu     sync.Mutex
	closed bool
	errs   []error // of parts that ended by themselves
	seq    int     // numbers log files
}

// New builds a cluster and returns when its nodes are Ready. On an error, or if ctx ends first, everything is removed.
func New(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.Nodes == 0 {
		cfg.Nodes = 3
	}
	if cfg.Nodes < 0 || cfg.Nodes > 7 {
		return nil, fmt.Errorf("%d nodes asked for: there are addresses for 1 to 7", cfg.Nodes)
	}
	if vms := cfg.VirtualMachines; vms > 0 && (vms > cfg.Nodes || cfg.Kernel != Native || cfg.Kubelets != nil) {
		return nil, fmt.Errorf("%d virtual machines asked for: at most all nodes, with Kernel Native, without Kubelets", vms)
	}
	if !cfg.Services.IsValid() {
		cfg.Services = clusterIPs
		if cfg.Kubelets != nil {
			cfg.Services = kubeletClusterIPs
		}
	}
	if cfg.Progress == nil {
		cfg.Progress = io.Discard
	}
	if err := needs(cfg); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, progress: cfg.Progress}
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	c.plugin = sync.OnceValue(func() error { return c.build.Own(c.life, "cmd/kubectl-ironlb") })
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// needs returns an error for a missing prerequisite of the lab.
func needs(cfg Config) error {
	if os.Geteuid() != 0 {
		return errors.New("not root: network namespaces need it; run this as root")
	}
	packages := map[string]string{"ip": "iproute2", "ipvsadm": "ipvsadm", "nft": "nftables", "setpriv": "util-linux", "sysctl": "procps"}
	if cfg.Kubelets != nil {
		maps.Copy(packages, kubeletPackages)
	}
	for program, pkg := range packages {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("program %s is missing: apt-get install %s, or make deps", program, pkg)
		}
	}
	return nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if err := c.claimScratch(); err != nil {
		return err
	}
	if err := c.buildPrograms(ctx); err != nil {
		return err
	}
	c.printf("making the management network")
	if err := c.makeManagement(ctx); err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.startControlPlane(gctx) })
	group.Go(func() error {
		if err := c.startKernel(gctx); err != nil {
			return err
		}
		return c.makeNetwork(gctx)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if !c.cfg.Bare && c.cfg.Kubelets == nil {
		if err := c.applyDeploy(ctx); err != nil {
			return err
		}
	}
	return c.startNodes(ctx)
}

const bgpProgram = "cmd/ironlb-bgpd"

func (c *Cluster) buildPrograms(ctx context.Context) (err error) {
	if c.build, err = tools.New(ctx, c.progress); err != nil {
		return err
	}
	c.Root, c.build.Private = c.build.Root, filepath.Join(c.Dir, "bin")
	own := tools.LabPrograms
	if !c.cfg.Bare {
		own = slices.Concat(own, tools.ProductPrograms)
	}
	if c.cfg.BGP || c.cfg.Kubelets != nil && !c.cfg.Bare {
		own = append(slices.Clip(own), bgpProgram)
	}
	c.printf("building the lab's programs")
	pinned := slices.Concat([]string{"kubectl"}, tools.ControlPlane, c.cfg.Programs)
	if c.cfg.KubeProxy {
		pinned = append(pinned, "kube-proxy")
	}
	if c.cfg.Kubelets != nil {
		pinned, own = append(pinned, c.kubeletPrograms()...), append(slices.Clip(own), kubeletProgram)
	}
	if err := c.build.Programs(ctx, pinned, own); err != nil || c.cfg.Kubelets == nil {
		return err
	}
	c.images, err = c.buildImages(ctx)
	return err
}

func (c *Cluster) startControlPlane(ctx context.Context) error {
	dir := filepath.Join(c.Dir, "controlplane")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	c.printf("starting etcd, kube-apiserver, kube-controller-manager")
	began := time.Now()
	cp, err := controlplane.Start(ctx, controlplane.Config{
		Namespace: c.Management.Namespace,
		Address:   apiServer,
		Dir:       dir,
		Program:   c.build.Path,
		Services:  c.services(),
		Nodes:     nodeNames(c.cfg.Nodes),
		NodeGrace: c.cfg.NodeGrace,
		Heartbeat: c.cfg.Heartbeat,
		Kubelets:  c.cfg.Kubelets != nil,
		APIServer: c.cfg.APIServer,
	})
	if err != nil {
		return err
	}
	c.cp = cp
	c.onClose(cp.Close)
	go func() {
		for {
			select {
			case err := <-cp.Failed():
				c.fail(err)
			case <-c.life.Done():
				return
			}
		}
	}()
	c.printf("the control plane is ready after %s", time.Since(began).Round(100*time.Millisecond))
	return c.newClients()
}

// startKernel selects the nodes' kernel and boots a guest if needed.
func (c *Cluster) startKernel(ctx context.Context) error {
	why := guest.Probe()
	if c.cfg.Kernel == Native || c.cfg.Kernel == Auto && why == nil {
		c.kernel, c.Kernel = host.Native{}, Native
		return nil
	}
	if why == nil {
		why = errors.New("asked for")
	}
	c.printf("booting a guest kernel (%v)", why)
	boot, cancel := context.WithCancel(c.life)
	stop := context.AfterFunc(ctx, cancel)
	defer stop() // the guest outlives ctx: it ends with the lab
	config := guest.Config{
		Links:    []guest.Link{{Name: guestLink, NetNS: c.Management.Namespace, Bridge: apiBridge, Tap: "guest"}},
		Shares:   []string{c.Dir},
		Programs: []string{c.build.Private},
		Log:      c.log,
	}
	if c.cfg.Kubelets != nil {
		config.MemoryMiB = 8192 // the nodes' disks are in memory, with the images
	}
	g, err := guest.Start(boot, config)
	if err != nil {
		cancel()
		return err
	}
	c.kernel, c.Kernel, c.guest = g, Guest, g
	c.onClose(g.Close)
	go func() {
		<-g.Lost()
		c.fail(g.Err())
	}()
	c.printf("the guest is up after %s (%s)", g.Boot.Round(100*time.Millisecond), accelText(g.Accel))
	return nil
}

// limit returns the timeout for an operation that takes d on real hardware: six times as long in an emulated guest.
func (c *Cluster) limit(d time.Duration) time.Duration {
	if c.guest != nil && c.guest.Accel == "tcg" {
		return 6 * d
	}
	return d
}

func accelText(accel string) string {
	if accel == "tcg" {
		return "emulated: no KVM that boots here, programs in it run about ten times slower"
	}
	return accel
}

// Err joins the errors of parts that ended by themselves: nil while the cluster is healthy.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.errs...)
}

func (c *Cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && !c.closed {
		c.errs = append(c.errs, err)
	}
}

func (c *Cluster) onClose(undo func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.undo = append(c.undo, undo)
}

// ErrLeft is in the error of a Close, or of a failed New, that could not remove everything.
var ErrLeft = errors.New("not everything of the lab could be removed; the next one tries again")

// Close stops every process and removes every namespace, link and file of the lab, in the reverse order of creation. It
// may be called twice.
func (c *Cluster) Close() error {
	c.mu.Lock()
	undo := c.undo
	c.undo, c.closed = nil, true
	c.mu.Unlock()
	var errs []error
	for i := len(undo) - 1; i >= 0; i-- {
		errs = append(errs, undo[i]())
	}
	c.end()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

func (c *Cluster) printf(format string, args ...any) { fmt.Fprintf(c.progress, format+"\n", args...) }
