// Package rig runs ironlb-ccm against a real etcd and kube-apiserver on this machine, without nodes: for tests and
// benchmarks of the controllers alone. It needs root.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/controlplane"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/tools"
)

// Addresses of every rig: 192.0.2.0/24 and the rest of 2001:db8::/32 are free for pools. Only the IPv6 range of
// ClusterIPs has room for thousands of Services.
var (
	apiServer  = netip.MustParseAddr("198.51.100.1")
	clusterIPs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:f::/108")}
)

// Account of ironlb-ccm, as in deploy/.
const (
	systemNamespace = "ironlb-system"
	account         = "ironlb-ccm"
	accountUser     = "system:serviceaccount:" + systemNamespace + ":" + account
)

// Config of a rig. The zero value is valid.
type Config struct {
	Progress io.Writer // a line for each long step; nil: silent
	Bare     bool      // without the CRDs and permissions of deploy/
}

// Rig runs until Close.
type Rig struct {
	Kube    kubernetes.Interface // as an administrator, from this process
	Account kubernetes.Interface // as ironlb-ccm's account, from this process
	Rest    *rest.Config         // of Account
	Dir     string               // scratch: logs, kubeconfigs; removed by Close

	cfg        Config
	namespace  string // network namespace of all processes
	build      *tools.Build
	cp         *controlplane.ControlPlane
	kubeconfig string // of Account
	plugin     bool   // kubectl-ironlb has been built

	dynamic dynamic.Interface // as an administrator
	mapper  *restmapper.DeferredDiscoveryRESTMapper

	// For Reset.
	manifests string          // of deploy/
	applied   map[string]bool // kinds and names of these
	kinds     map[string]bool // resources of these
	first     objects
	unread    int64 // offset of the audit log where Writes begins

	mu        sync.Mutex
	seq       int
	processes []*process.Process
	undo      []func() error // in the order of creation
}

var rigs atomic.Int64 // created by this process

// New returns a rig with the CRDs and the permissions of deploy/ applied. On an error nothing is left.
func New(ctx context.Context, cfg Config) (*Rig, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("rig: not root: network namespaces need it; run this as root, or the tests with -short")
	}
	if cfg.Progress == nil {
		cfg.Progress = io.Discard
	}
	r := &Rig{cfg: cfg}
	setUp(r)
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("rig: %w", err), r.Close())
	}
	return r, nil
}

func (r *Rig) start(ctx context.Context) (err error) {
	if err := lab.Collect(); err != nil {
		return err
	}
	if err := r.makeScratch(); err != nil {
		return err
	}
	if r.build, err = tools.New(ctx, r.cfg.Progress); err != nil {
		return err
	}
	r.build.Private = filepath.Join(r.Dir, "bin")
	if err := r.build.Pinned(ctx, append([]string{"kubectl"}, tools.ControlPlane...)...); err != nil {
		return err
	}
	if err := r.build.Own(ctx, "cmd/ironlb-ccm"); err != nil {
		return err
	}
	if err := r.makeNamespace(ctx); err != nil {
		return err
	}
	if err := r.startControlPlane(ctx); err != nil {
		return err
	}
	if r.cfg.Bare {
		return nil
	}
	return r.applyDeploy(ctx)
}

// makeScratch creates the rig's folder. Before, it removes those of rigs whose process has ended.
func (r *Rig) makeScratch() error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find the cache folder: %w; set HOME", err)
	}
	base := filepath.Join(cache, "ironlb", "rig")
	old, err := filepath.Glob(filepath.Join(base, "*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		pid, _, _ := strings.Cut(filepath.Base(dir), "-")
		if n, err := strconv.Atoi(pid); err != nil || syscall.Kill(n, 0) == nil {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove what an earlier rig left: %w", err)
		}
	}
	n := rigs.Add(1)
	r.Dir = filepath.Join(base, fmt.Sprintf("%d-%d", os.Getpid(), n))
	r.namespace = fmt.Sprintf("ilb%d-ccm%d", os.Getpid(), n) // lab.Collect recognizes the name
	r.onClose(func() error { return os.RemoveAll(r.Dir) })
	return os.MkdirAll(r.Dir, 0o700)
}

func (r *Rig) makeNamespace(ctx context.Context) error {
	if _, err := host.Run(ctx, host.Native{}, "ip", "netns", "add", r.namespace); err != nil {
		return err
	}
	r.onClose(func() error {
		_, err := host.Run(context.WithoutCancel(ctx), host.Native{}, "ip", "netns", "del", r.namespace)
		return err
	})
	for _, args := range []string{"link set lo up", "addr add " + apiServer.String() + "/32 dev lo"} {
		argv := append([]string{"ip", "-n", r.namespace}, strings.Fields(args)...)
		if _, err := host.Run(ctx, host.Native{}, argv...); err != nil {
			return err
		}
	}
	return nil
}

func (r *Rig) startControlPlane(ctx context.Context) (err error) {
	dir := filepath.Join(r.Dir, "controlplane")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	program, err := r.audited(r.build.Path)
	if err != nil {
		return err
	}
	r.Progress("starting etcd, kube-apiserver, kube-controller-manager")
	r.cp, err = controlplane.Start(ctx, controlplane.Config{
		Namespace: r.namespace,
		Address:   apiServer,
		Dir:       dir,
		Program:   program,
		Services:  clusterIPs,
		NodeGrace: time.Hour, // the rig's nodes have no kubelet
	})
	if err != nil {
		return err
	}
	r.onClose(r.cp.Close)
	if r.Kube, err = kubernetes.NewForConfig(fast(r.cp.RESTConfig())); err != nil {
		return err
	}
	r.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(r.Kube.Discovery()))
	quiet := r.cp.RESTConfig()
	quiet.WarningHandler = rest.NoWarnings{} // about deprecated resources
	r.dynamic, err = dynamic.NewForConfig(quiet)
	return err
}

// fast makes a client use the controllers' content types, without a rate limit.
func fast(c *rest.Config) *rest.Config {
	c.QPS = -1
	c.ContentType, c.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	return c
}

// applyDeploy applies the prerequisites of ironlb-ccm in a cluster, and creates its account's credentials.
func (r *Rig) applyDeploy(ctx context.Context) (err error) {
	all, err := manifest.Load(r.build.Root, manifest.File)
	if err != nil {
		return err
	}
	all = all.Accounts()
	r.manifests, r.applied, r.kinds = all.String(), map[string]bool{}, map[string]bool{}
	for _, doc := range all {
		r.applied[doc.Kind+" "+doc.Name] = true
		if doc.Kind == "CustomResourceDefinition" {
			r.kinds[doc.Name] = true
		}
	}
	if err := r.Apply(ctx, r.manifests); err != nil {
		return err
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if r.kubeconfig, err = r.cp.ServiceAccountKubeconfig(ctx, systemNamespace, account); err != nil {
		return err
	}
	if r.Rest, err = r.accountConfig(); err != nil {
		return err
	}
	r.Account, err = kubernetes.NewForConfig(fast(rest.CopyConfig(r.Rest)))
	return err
}

// StopAPIServer kills kube-apiserver.
func (r *Rig) StopAPIServer() error { return r.cp.StopAPIServer() }

// StartAPIServer restarts kube-apiserver after StopAPIServer, and returns when it is ready.
func (r *Rig) StartAPIServer(ctx context.Context) error { return r.cp.StartAPIServer(ctx) }

// argv returns the command that runs argv in the rig's namespace.
func (r *Rig) argv(argv ...string) []string {
	return append([]string{"ip", "netns", "exec", r.namespace}, argv...)
}

// Err returns nil while the control plane is healthy.
func (r *Rig) Err() error {
	select {
	case err := <-r.cp.Failed():
		return err
	default:
		return nil
	}
}

// Progress reports a long step.
func (r *Rig) Progress(format string, args ...any) { fmt.Fprintf(r.cfg.Progress, format+"\n", args...) }

func (r *Rig) onClose(undo func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.undo = append(r.undo, undo)
}

// Close ends every process and removes namespace and files, in the reverse order of creation. It may be called twice.
func (r *Rig) Close() error {
	r.mu.Lock()
	undo := r.undo
	r.undo = nil
	r.mu.Unlock()
	errs := []error{r.endProcesses()}
	for i := len(undo) - 1; i >= 0; i-- {
		errs = append(errs, undo[i]())
	}
	gone(r)
	return errors.Join(errs...)
}

// run starts a command in the rig's namespace, with a log in Dir.
func (r *Rig) run(ctx context.Context, name string, argv ...string) (*process.Process, error) {
	r.mu.Lock()
	r.seq++
	log := filepath.Join(r.Dir, fmt.Sprintf("%s-%d.log", name, r.seq))
	r.mu.Unlock()
	p, err := process.Start(ctx, host.Native{}, name, log, host.Cmd{Argv: r.argv(argv...)})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = append(r.processes, p)
	return p, nil
}
