package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab"
)

// podFault is a fault of a node in the rows "pods".
type podFault struct {
	name     string
	other    bool // of a candidate other than the owner
	gone     bool // the Pods on the node do not answer
	notReady bool // Kubernetes marks the node not Ready after the grace period
	// watch is the observation time of the clients; with notReady, span adds the grace period instead.
	watch time.Duration
	// do injects the fault, and may last. heal repairs the node.
	do, heal func(context.Context, *bench, peer, *lab.Node) error
}

const (
	// heartbeat is the interval of Lease renewals, as in the kubelet's defaults.
	heartbeat = 10 * time.Second
	// afterwards is the observation time of the clients after the last effect.
	afterwards = 10 * time.Second

	flaps    = 5
	flapTime = 3 * time.Second
)

var podFaults = []podFault{
	{name: "power-off-owner", gone: true, notReady: true, do: cutPower, heal: givePower},
	{name: "power-off-other", other: true, gone: true, notReady: true, do: cutPower, heal: givePower},
	{name: "link-cut-owner", gone: true, notReady: true, do: unplug, heal: plug},
	{name: "link-cut-other", other: true, gone: true, notReady: true, do: unplug, heal: plug},
	{
		name: "kubelet", other: true, notReady: true,
		do:   func(_ context.Context, _ *bench, _ peer, n *lab.Node) error { return n.StopKubelet() },
		heal: func(ctx context.Context, _ *bench, _ peer, n *lab.Node) error { return n.StartKubelet(ctx) },
	},
	{
		name: "kill", watch: 15 * time.Second,
		do:   func(_ context.Context, _ *bench, p peer, n *lab.Node) error { return p.signal(n, syscall.SIGKILL) },
		heal: startOn,
	},
	{
		name: "pause", watch: pauseTime + afterwards,
		do: func(ctx context.Context, _ *bench, p peer, n *lab.Node) error {
			if err := p.signal(n, syscall.SIGSTOP); err != nil {
				return err
			}
			return errors.Join(wait(ctx, pauseTime), p.signal(n, syscall.SIGCONT))
		},
	},
	{name: "flap", other: true, watch: 2*flaps*flapTime + afterwards, do: flap},
}

func podFaultNames() (names []string) {
	for _, f := range podFaults {
		names = append(names, f.name)
	}
	return names
}

// span returns the observation time of the clients.
func (f podFault) span(o options) time.Duration {
	if f.notReady { // the last heartbeat may coincide with the fault; nodes are evaluated twice per heartbeat
		return o.grace + heartbeat/2 + afterwards
	}
	return f.watch
}

// sure returns the time for which Kubernetes certainly considers the node Ready.
func (f podFault) sure(o options) time.Duration {
	if f.notReady {
		return o.grace - heartbeat - time.Second
	}
	return f.watch
}

// hit returns the nodes affected by a fault of a candidate.
func hit(p peer, n *lab.Node) []*lab.Node {
	if k, ok := p.(*lvs); ok {
		return []*lab.Node{n, k.podNode(n)}
	}
	return []*lab.Node{n}
}

func cutPower(ctx context.Context, b *bench, p peer, n *lab.Node) error {
	if k, ok := p.(*lvs); ok {
		return k.powerOff(ctx, n)
	}
	return powerOff(ctx, b, p, n)
}

func givePower(ctx context.Context, b *bench, p peer, n *lab.Node) error {
	if k, ok := p.(*lvs); ok {
		return k.powerOn(ctx, n)
	}
	return powerOn(ctx, b, p, n)
}

func unplug(ctx context.Context, _ *bench, p peer, n *lab.Node) error {
	var errs []error
	for _, n := range hit(p, n) {
		errs = append(errs, n.Unplug(ctx))
	}
	return errors.Join(errs...)
}

func plug(ctx context.Context, _ *bench, p peer, n *lab.Node) error {
	var errs []error
	for _, n := range hit(p, n) {
		errs = append(errs, n.RestoreLAN(ctx), n.RestoreAPI(ctx))
	}
	return errors.Join(errs...)
}

func flap(ctx context.Context, _ *bench, p peer, n *lab.Node) error {
	for range flaps {
		for _, set := range []func(*lab.Node, context.Context) error{(*lab.Node).LinkDown, (*lab.Node).LinkUp} {
			var errs []error
			for _, n := range hit(p, n) {
				errs = append(errs, set(n, ctx))
			}
			if err := errors.Join(append(errs, wait(ctx, flapTime))...); err != nil {
				return err
			}
		}
	}
	return nil
}
