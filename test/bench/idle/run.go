package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/bench/services"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/process"
)

// subject is a process to measure.
type subject struct {
	name, node string
	p          *process.Process
}

// peer is a product in its lab.
type peer interface {
	// install creates its objects, once.
	install(context.Context) error
	// start starts its processes. All of them are those to measure.
	start(context.Context) ([]subject, error)
	// ready returns nil once everything is programmed and announced for that number of Services.
	ready(ctx context.Context, services int) error
	// stop ends its processes. What they left in the kernel is removed with the nodes.
	stop() error
}

// Names of the peers.
const (
	ironlbName      = "ironlb"
	ironlbProxyName = "ironlb-kube-proxy"
	metallbName     = "metallb"
)

var peerNames = []string{ironlbName, ironlbProxyName, metallbName}

// run measures each peer in its own lab. A peer that cannot be measured does not end the run.
func run(ctx context.Context, o options) error {
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/idle\n", runtime.GOOS, runtime.GOARCH)
	var errs []error
	for _, name := range o.peers {
		if err := runPeer(ctx, o, name); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
			progress("not measured to the end: %v", err)
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

const (
	heartbeat = 10 * time.Second // as Kubernetes' own
	grace     = 40 * time.Second
)

func runPeer(ctx context.Context, o options, name string) (err error) {
	config := lab.Config{
		Kernel: lab.Native, Services: services.ClusterIPs, NodeGrace: grace, Heartbeat: heartbeat, Progress: os.Stderr,
		KubeProxy: name != ironlbName, BGP: name != metallbName,
	}
	newPeer := func(c *lab.Cluster) peer { return &ironlb{c: c, kubeProxy: name == ironlbProxyName} }
	if name == metallbName {
		config.Bare, config.Programs = true, metallbPrograms
		newPeer = newMetalLB
	}
	c, err := lab.New(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		if o.logs != "" {
			err = errors.Join(err, c.SaveLogs(filepath.Join(o.logs, name)))
		}
		err = errors.Join(err, c.Close())
	}()
	b := &bench{o: o, c: c, name: name, p: newPeer(c)}
	if err := b.p.install(ctx); err != nil {
		return err
	}
	for _, size := range o.sizes {
		if err := b.measureWith(ctx, size); err != nil {
			return fmt.Errorf("%d Services: %w", size, err)
		}
	}
	return nil
}

// bench is a lab with one peer.
type bench struct {
	o        options
	c        *lab.Cluster
	name     string
	p        peer
	services int // existing ones
}

// measureWith creates Services up to that number, and starts, measures and stops the peer.
func (b *bench) measureWith(ctx context.Context, size int) (err error) {
	progress("%s: making Services %d to %d", b.name, b.services, size)
	if err := services.Grow(ctx, b.c.Kube, b.services, size, services.Spec{Endpoints: b.endpoints}); err != nil {
		return err
	}
	b.services = size
	subjects, err := b.p.start(ctx)
	defer func() {
		err = errors.Join(err, b.p.stop())
		for _, n := range b.c.Nodes {
			ctx := context.WithoutCancel(ctx)
			err = errors.Join(err, n.PowerOff(ctx), n.PowerOn(ctx))
		}
	}()
	if err != nil {
		return err
	}
	began := time.Now()
	err = b.poll(ctx, "the peer is ready", func(ctx context.Context) error { return b.p.ready(ctx, size) })
	if err != nil {
		return err
	}
	progress("%s with %d Services: ready after %v", b.name, size, time.Since(began).Round(100*time.Millisecond))
	return b.measure(ctx, subjects)
}

func (b *bench) endpoints(i int) []discoveryv1.Endpoint {
	var nodes []string
	for _, n := range b.c.Nodes {
		nodes = append(nodes, n.Name)
	}
	return services.Unused(i, nodes...)
}

// pollEvery is long enough for lists of thousands of objects.
const pollEvery = 2 * time.Second

// poll waits until check returns nil, at most for -limit.
func (b *bench) poll(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, b.o.limit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if broken := b.c.Err(); broken != nil {
			return fmt.Errorf("wait until %s: the lab is broken: %w", what, broken)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: not within %v: %w", what, b.o.limit, err)
		case <-tick.C:
		}
	}
}

// assigned returns nil if that number of Services have an address.
func assigned(ctx context.Context, c *lab.Cluster, want int) error {
	// ResourceVersion 0: from the API server's cache.
	all, err := c.Kube.CoreV1().Services(services.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	have := 0
	for _, svc := range all.Items {
		if len(svc.Status.LoadBalancer.Ingress) > 0 {
			have++
		}
	}
	if have < want {
		return fmt.Errorf("%d of %d Services have an address", have, want)
	}
	return nil
}
