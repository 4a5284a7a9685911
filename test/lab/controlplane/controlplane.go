// Package controlplane runs a real Kubernetes control plane natively on this machine: etcd, kube-apiserver and
// kube-controller-manager, inside a network namespace that the caller made and gave an address.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/tools"
)

// Scheduler is also needed with Config.Kubelets.
const Scheduler = "kube-scheduler"

// Config of a control plane. NodeGrace, Heartbeat, Kubelets and APIServer are optional.
type Config struct {
	Namespace string     // network namespace of this machine that holds Address
	Address   netip.Addr // of the API server, port 6443
	Dir       string     // an empty folder for keys, data and logs
	Program   func(name string) string
	Services  []netip.Prefix // ClusterIPs, at most one range of each family
	Nodes     []string       // names that get a kubelet's credentials
	NodeGrace time.Duration  // time without a heartbeat until a node is not Ready; 0: 4s, with Kubelets Kubernetes' own 50s
	Heartbeat time.Duration  // interval of the nodes, which are evaluated twice in it; 0: once a second
	Kubelets  bool           // the nodes have kubelets: run a scheduler and every controller
	APIServer []string       // additional flags of kube-apiserver
}

// ControlPlane runs until Close.
type ControlPlane struct {
	cfg    Config
	tokens map[string]string // by user name
	rest   *rest.Config
	client kubernetes.Interface

	etcd, apiserver, controllers, scheduler *process.Process
	failed                                  chan error
}

// Start returns when the API server is ready and the controllers run. After an error nothing is left running.
func Start(ctx context.Context, cfg Config) (cp *ControlPlane, err error) {
	if cfg.NodeGrace == 0 {
		cfg.NodeGrace = 4 * time.Second
		if cfg.Kubelets {
			cfg.NodeGrace = 50 * time.Second
		}
	}
	needed := tools.ControlPlane
	if cfg.Kubelets {
		needed = append(slices.Clip(needed), Scheduler)
	}
	for _, name := range needed {
		if _, err := os.Stat(cfg.Program(name)); err != nil {
			return nil, fmt.Errorf("start the control plane: %s is not built: %w", name, err)
		}
	}
	cp = &ControlPlane{cfg: cfg, failed: make(chan error, 4)}
	defer func() {
		if err != nil {
			err = errors.Join(err, cp.Close())
			cp = nil
		}
	}()
	addresses := []net.IP{cfg.Address.AsSlice(), net.IPv4(127, 0, 0, 1)}
	for _, p := range cfg.Services {
		addresses = append(addresses, p.Masked().Addr().Next().AsSlice()) // of Service kubernetes
	}
	if err := writeKeys(cfg.Dir, addresses); err != nil {
		return cp, fmt.Errorf("start the control plane: %w", err)
	}
	if err := cp.writeTokens(); err != nil {
		return cp, fmt.Errorf("start the control plane: %w", err)
	}
	if err := cp.newClient(); err != nil {
		return cp, fmt.Errorf("start the control plane: %w", err)
	}
	if cp.etcd, err = cp.run(ctx, "etcd", cp.etcdFlags()); err != nil {
		return cp, err
	}
	if err := cp.StartAPIServer(ctx); err != nil {
		return cp, err
	}
	if cp.controllers, err = cp.run(ctx, "kube-controller-manager", cp.controllerFlags()); err != nil {
		return cp, err
	}
	if cfg.Kubelets {
		if cp.scheduler, err = cp.run(ctx, Scheduler, cp.schedulerFlags()); err != nil {
			return cp, err
		}
	}
	return cp, nil
}

// RESTConfig returns the configuration of a cluster administrator, for this process: connections are made inside the
// control plane's namespace.
func (cp *ControlPlane) RESTConfig() *rest.Config { return rest.CopyConfig(cp.rest) }

// Kubeconfig returns the administrator's file, for programs in the namespace.
func (cp *ControlPlane) Kubeconfig() string { return filepath.Join(cp.cfg.Dir, "admin.kubeconfig") }

// ClientCA returns the file of the authority that signs client certificates.
func (cp *ControlPlane) ClientCA() string { return cp.file(caFile) }

// URL of the API server.
func (cp *ControlPlane) URL() string {
	return "https://" + netip.AddrPortFrom(cp.cfg.Address, 6443).String()
}

// Failed yields an error for each component that ended by itself.
func (cp *ControlPlane) Failed() <-chan error { return cp.failed }

// StopAPIServer kills the API server, as in a crash; etcd and the controllers keep running.
func (cp *ControlPlane) StopAPIServer() error { return kill(cp.apiserver) }

// StartAPIServer starts the API server and waits until it is ready.
func (cp *ControlPlane) StartAPIServer(ctx context.Context) (err error) {
	if cp.apiserver, err = cp.run(ctx, "kube-apiserver", cp.apiserverFlags()); err != nil {
		return err
	}
	return cp.waitReady(ctx)
}

// Close ends the components, clients before servers. Their state is discarded, so no graceful shutdown is needed.
func (cp *ControlPlane) Close() error {
	return errors.Join(kill(cp.scheduler), kill(cp.controllers), kill(cp.apiserver), kill(cp.etcd))
}

func kill(p *process.Process) error {
	if p == nil {
		return nil
	}
	return p.Kill()
}

// run starts one component in the namespace and watches it.
func (cp *ControlPlane) run(ctx context.Context, name string, flags []string) (*process.Process, error) {
	argv := append([]string{"ip", "netns", "exec", cp.cfg.Namespace, cp.cfg.Program(name)}, flags...)
	p, err := process.Start(ctx, host.Native{}, name, filepath.Join(cp.cfg.Dir, name+".log"), host.Cmd{Argv: argv, Dir: cp.cfg.Dir})
	if err != nil {
		return nil, err
	}
	go func() {
		<-p.Done()
		if err := p.Err(); err != nil {
			select {
			case cp.failed <- err:
			default: // enough errors are queued
			}
		}
	}()
	return p, nil
}

// waitReady polls the API server's readiness. It gives up when the API server or etcd ends, or after 2 minutes: other
// tests may run at the same time.
func (cp *ControlPlane) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cp.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return nil
		}
		select {
		case <-cp.etcd.Done():
			return fmt.Errorf("start kube-apiserver: %w", cp.etcd.Err())
		case <-cp.apiserver.Done():
			return fmt.Errorf("start kube-apiserver: %w", cp.apiserver.Err())
		case <-ctx.Done():
			return fmt.Errorf("start kube-apiserver: not ready at %s: %w; its last lines:\n%s", cp.URL(), err, process.Tail(cp.apiserver.Log, 15))
		case <-tick.C:
		}
	}
}
