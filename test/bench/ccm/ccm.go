package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/ccm/rig"
)

// objects of a cluster with IronLB: a pool with announced addresses.
const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: bench}
spec: {addresses: ["2001:db8:1::/112"]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: bench}
spec: {ipAddressPools: [bench]}
`

const port = 10258

// limit is the timeout of a burst of n Services.
func limit(n int) time.Duration { return 3*time.Minute + time.Duration(n)*100*time.Millisecond }

// burst is the result of one burst.
type burst struct {
	took    time.Duration // until the last Service is in the wanted state
	settled time.Duration // until the last write
	usage   rig.Usage     // of ironlb-ccm: the CPU time in the burst, the memory since its start
	writes  rig.Writes
}

// newRig starts a control plane with the objects and three nodes.
func newRig(ctx context.Context, o options) (r *rig.Rig, err error) {
	if r, err = rig.New(ctx, rig.Config{Progress: o.progress}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closing(&err, r.Close)
		}
	}()
	if err := r.Apply(ctx, objects); err != nil {
		return nil, err
	}
	return r, r.AddNodes(ctx, 3)
}

// startCCM starts the only replica. It is ready at once or after its caches have synced.
func startCCM(ctx context.Context, r *rig.Rig) (*rig.CCM, error) {
	c, err := r.StartCCM(ctx, port, "--leader-elect=false")
	if err != nil {
		return nil, err
	}
	return c, c.WaitReady(ctx, time.Minute)
}

// bursts measures a burst of creates and one of deletes, first with ironlb-ccm, then with the bare generator.
func bursts(ctx context.Context, o options, kind string) (err error) {
	r, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer closing(&err, r.Close)
	var class *string
	if kind == "class" {
		class = ptr.To("ironlb.io/lb")
	}
	name := func(what string) string { return fmt.Sprintf("%s/%d/%s", what, o.services, kind) }

	created, deleted, err := measured(ctx, o, r, class)
	if err != nil {
		return fmt.Errorf("%s: %w", name("CCM"), err)
	}
	bareCreated, bareDeleted, err := bare(ctx, r, o.services, class, created.writes, deleted.writes)
	if err != nil {
		return fmt.Errorf("%s: %w", name("Bare"), err)
	}
	n := float64(o.services)
	for _, b := range []struct {
		name string
		ccm  burst
		bare time.Duration
	}{{name("CCMCreate"), created, bareCreated}, {name("CCMDelete"), deleted, bareDeleted}} {
		result(b.name, b.ccm.took, metrics{
			"svc/s": n / b.ccm.took.Seconds(), "settled-s": b.ccm.settled.Seconds(),
			"of-bare": b.bare.Seconds() / b.ccm.settled.Seconds(), "cpu-s": b.ccm.usage.CPU.Seconds(),
			"peak-MB": float64(b.ccm.usage.Peak) / 1e6, "writes/svc": float64(b.ccm.writes.Sum()) / n,
		})
	}
	result(name("BareCreate"), bareCreated, metrics{"svc/s": n / bareCreated.Seconds()})
	result(name("BareDelete"), bareDeleted, metrics{"svc/s": n / bareDeleted.Seconds()})
	return nil
}

// measured measures ironlb-ccm.
func measured(ctx context.Context, o options, r *rig.Rig, class *string) (created, deleted burst, err error) {
	const namespace = "bench-ccm"
	c, err := startCCM(ctx, r)
	if err != nil {
		return created, deleted, err
	}
	defer closing(&err, c.Kill)
	if err := r.Namespace(ctx, namespace); err != nil {
		return created, deleted, err
	}
	services := r.Kube.CoreV1().Services(namespace)
	r.Progress("ironlb-ccm: %d Services are created", o.services)
	created, err = measure(ctx, o, r, c, namespace, rig.Served, func(ctx context.Context, i int) error {
		_, err := services.Create(ctx, rig.Service(namespace, serviceName(i), class), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return created, deleted, fmt.Errorf("create: %w", err)
	}
	if err := heap(ctx, o, c); err != nil {
		return created, deleted, err
	}
	r.Progress("ironlb-ccm: %d Services are deleted", o.services)
	deleted, err = measure(ctx, o, r, c, namespace, rig.Gone, func(ctx context.Context, i int) error {
		return services.Delete(ctx, serviceName(i), metav1.DeleteOptions{})
	})
	if err != nil {
		return created, deleted, fmt.Errorf("delete: %w", err)
	}
	return created, deleted, nil
}

func serviceName(i int) string { return fmt.Sprintf("s%04d", i) }

// measure calls do for every Service and waits until done holds for all and writes have stopped.
func measure(ctx context.Context, o options, r *rig.Rig, c *rig.CCM, namespace string,
	done func(watch.EventType, *v1.Service) bool, do func(context.Context, int) error) (b burst, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit(o.services))
	defer cancel()
	_, events, err := r.Follow(ctx, namespace)
	if err != nil {
		return b, err
	}
	writes, _, err := r.Writes()
	if err != nil {
		return b, err
	}
	use, err := c.Usage()
	if err != nil {
		return b, err
	}
	stop := profile(ctx, o, c)

	start := time.Now()
	failed := make(chan error, 1)
	go func() { failed <- rig.Each(ctx, o.services, do) }()
	end, err := rig.Await(ctx, events, o.services, done)
	if err != nil {
		cancel()
		return b, fmt.Errorf("%w (the load: %v)", err, <-failed)
	}
	if err := <-failed; err != nil {
		return b, err
	}
	b.took = end.Sub(start)
	after, last, err := r.Settled(ctx)
	if err != nil {
		return b, err
	}
	b.writes, b.settled = after.Since(writes).Of(), max(last.Sub(start), b.took)
	r.Progress("  %.2fs, settled after %.2fs; writes: %v", b.took.Seconds(), b.settled.Seconds(), b.writes)
	if b.usage, err = c.Usage(); err != nil {
		return b, err
	}
	b.usage.CPU -= use.CPU
	return b, stop()
}

// profile takes a CPU profile if requested; the returned function waits for it.
func profile(ctx context.Context, o options, c *rig.CCM) func() error {
	if o.profile == "" {
		return func() error { return nil }
	}
	saved := make(chan error, 1)
	go func() { saved <- save(ctx, o, c, "cpu", "/debug/pprof/profile?seconds=5") }()
	return func() error { return <-saved }
}

func heap(ctx context.Context, o options, c *rig.CCM) error {
	if o.profile == "" {
		return nil
	}
	return save(ctx, o, c, "heap", "/debug/pprof/heap")
}

func save(ctx context.Context, o options, c *rig.CCM, name, page string) (err error) {
	data, err := c.Get(ctx, page)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return fmt.Errorf("save the profile: %w", err)
	}
	f, err := os.CreateTemp(o.profile, name+"-*.pprof")
	if err != nil {
		return fmt.Errorf("save the profile: %w", err)
	}
	defer closing(&err, f.Close)
	fmt.Fprintln(o.progress, "  profile:", filepath.Base(f.Name()))
	_, err = f.Write(data)
	return err
}
