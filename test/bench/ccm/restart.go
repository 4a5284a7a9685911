package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
)

// restart measures how long a new ironlb-ccm needs beside many assigned Services: until it is ready, and until it has
// served one more Service.
func restart(ctx context.Context, o options) (err error) {
	const namespace = "bench-restart"
	r, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer closing(&err, r.Close)
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	first, err := startCCM(ctx, r)
	if err != nil {
		return err
	}
	r.Say("ironlb-ccm: %d Services are created, for a restart", o.restart)
	if err := r.Serve(ctx, namespace, o.restart, nil); err != nil {
		return err
	}
	before, _, err := r.Settled(ctx)
	if err != nil {
		return err
	}
	if err := first.Kill(); err != nil {
		return err
	}

	_, events, err := r.Follow(ctx, namespace)
	if err != nil {
		return err
	}
	start := time.Now()
	second, err := startCCM(ctx, r)
	if err != nil {
		return err
	}
	ready := time.Since(start)
	if _, err := r.Kube.CoreV1().Services(namespace).Create(ctx, rig.Service(namespace, "one-more", nil), metav1.CreateOptions{}); err != nil {
		return err
	}
	served, err := rig.Await(ctx, events, 1, rig.Served)
	if err != nil {
		return err
	}
	after, _, err := r.Settled(ctx)
	if err != nil {
		return err
	}
	use, err := second.Usage()
	if err != nil {
		return err
	}
	writes := after.Since(before).Of()
	r.Say("  ready after %.2fs; writes, one new Service's included: %v", ready.Seconds(), writes)
	result(fmt.Sprintf("CCMRestart/%d", o.restart), ready, metrics{
		"one-more-s": served.Sub(start).Seconds(), "cpu-s": use.CPU.Seconds(), "peak-MB": float64(use.Peak) / 1e6,
		"writes": float64(writes.Sum()),
	})
	return second.Kill()
}
