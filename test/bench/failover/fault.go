package main

import (
	"context"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab"
)

// fault is a fault of the address's owner.
type fault struct {
	name string
	do   func(context.Context, *bench, peer, *lab.Node) error
	// hold is its minimum duration; then end ends it, before the client's recovery is checked.
	hold time.Duration
	end  func(context.Context, *bench, peer, *lab.Node) error
	// heal repairs the node.
	heal func(context.Context, *bench, peer, *lab.Node) error
}

const pauseTime = 5 * time.Second

var faults = []fault{
	{name: "power-off", do: powerOff, heal: powerOn},
	{
		name: "link-cut",
		do:   func(ctx context.Context, _ *bench, _ peer, n *lab.Node) error { return n.CutLAN(ctx) },
		heal: func(ctx context.Context, _ *bench, _ peer, n *lab.Node) error { return n.RestoreLAN(ctx) },
	},
	{
		name: "kill",
		do:   func(_ context.Context, _ *bench, p peer, n *lab.Node) error { return p.signal(n, syscall.SIGKILL) },
		heal: startOn,
	},
	{
		name: "pause", hold: pauseTime,
		do:  func(_ context.Context, _ *bench, p peer, n *lab.Node) error { return p.signal(n, syscall.SIGSTOP) },
		end: func(_ context.Context, _ *bench, p peer, n *lab.Node) error { return p.signal(n, syscall.SIGCONT) },
	},
	{
		name: "stop",
		do:   func(_ context.Context, _ *bench, p peer, n *lab.Node) error { return p.signal(n, syscall.SIGTERM) },
		heal: startOn,
	},
	{
		name: "drain",
		do:   func(ctx context.Context, _ *bench, _ peer, n *lab.Node) error { return n.Cordon(ctx) },
		heal: func(ctx context.Context, _ *bench, _ peer, n *lab.Node) error { return n.Uncordon(ctx) },
	},
	{
		name: "power-off-no-api",
		do: func(ctx context.Context, b *bench, p peer, n *lab.Node) error {
			if err := b.c.StopAPIServer(); err != nil {
				return err
			}
			return powerOff(ctx, b, p, n)
		},
		heal: func(ctx context.Context, b *bench, p peer, n *lab.Node) error {
			if err := b.c.StartAPIServer(ctx); err != nil {
				return err
			}
			return powerOn(ctx, b, p, n)
		},
	},
}

func faultNames() (names []string) {
	for _, f := range faults {
		names = append(names, f.name)
	}
	return names
}

func powerOff(ctx context.Context, _ *bench, _ peer, n *lab.Node) error { return n.PowerOff(ctx) }

func powerOn(ctx context.Context, b *bench, p peer, n *lab.Node) error {
	if err := n.PowerOn(ctx); err != nil {
		return err
	}
	return startOn(ctx, b, p, n)
}

func startOn(ctx context.Context, _ *bench, p peer, n *lab.Node) error { return p.startOn(ctx, n) }
