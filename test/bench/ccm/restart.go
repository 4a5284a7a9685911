package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
)

// restart measures the time that a new ironlb-ccm needs with many assigned Services: until it is ready, and until it
// has served one more Service.
func restart(ctx context.Context, o options) (err error) {
	const namespace = "bench-restart"
	r, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer closing(&err, r.Close)
	ctx, cancel := context.WithTimeout(ctx, 2*limit(o.restart))
	defer cancel()
	first, err := startCCM(ctx, r)
	if err != nil {
		return err
	}
	r.Progress("ironlb-ccm: %d Services are created, for a restart", o.restart)
	if err := r.Namespace(ctx, namespace); err != nil {
		return err
	}
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
	after, _, err := r.Settled(ctx)
	if err != nil {
		return err
	}
	writes := after.Since(before).Of()
	create := time.Now()
	if _, err := r.Kube.CoreV1().Services(namespace).Create(ctx, rig.Service(namespace, "one-more", nil), metav1.CreateOptions{}); err != nil {
		return err
	}
	served, err := rig.Await(ctx, events, 1, rig.Served)
	if err != nil {
		return err
	}
	use, err := second.Usage()
	if err != nil {
		return err
	}
	r.Progress("  ready after %.2fs; writes without a change: %v", ready.Seconds(), writes)
	toServices := 0
	for w, n := range writes {
		if strings.HasPrefix(w.Resource, "services") {
			toServices += n
		}
	}
	result(fmt.Sprintf("CCMRestart/%d", o.restart), ready, metrics{
		"one-more-s": served.Sub(create).Seconds(), "cpu-s": use.CPU.Seconds(), "peak-MB": float64(use.Peak) / 1e6,
		"writes": float64(writes.Sum()), "svc-writes": float64(toServices),
	})
	return second.Kill()
}
