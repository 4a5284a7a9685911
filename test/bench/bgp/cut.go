package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

// finding is a configuration for detecting that a node is cut off.
type finding struct {
	peer     string // added to the BGPPeer's spec
	neighbor router.Neighbor
}

var timers = router.BFDTimers{Interval: 100 * time.Millisecond, Multiplier: 3}

var findings = map[string]finding{
	"bfd":    {"bfdProfile: quick", router.Neighbor{BFD: timers}},
	"bfd-gr": {"bfdProfile: quick, gracefulRestart: true", router.Neighbor{BFD: timers}},
	"hold":   {"holdTime: 9s, keepaliveTime: 3s", router.Neighbor{Hold: 9 * time.Second}},
}

// cuts cuts nodes off, one after the other.
func (b *bench) cuts(ctx context.Context) error {
	if err := b.c.ApplyYAML(ctx, `{apiVersion: ironlb.io/v1alpha1, kind: BFDProfile, metadata: {name: quick}, spec: {receiveInterval: 100, transmitInterval: 100}}`); err != nil {
		return err
	}
	if err := b.service(ctx, "steady", corev1.ServiceExternalTrafficPolicyCluster); err != nil {
		return err
	}
	if err := b.endpoint(ctx, "steady", true); err != nil {
		return err
	}
	for _, mode := range modes {
		if !slices.Contains(b.o.modes, mode) {
			continue
		}
		f := findings[mode]
		if err := b.peers(ctx, f.peer, f.neighbor); err != nil {
			return err
		}
		took := map[*tor][]time.Duration{}
		for i := range b.o.rounds {
			if err := b.cut(ctx, f, b.c.Node(i%len(b.c.Nodes)), took); err != nil {
				return fmt.Errorf("%s, round %d: %w", mode, i+1, err)
			}
			line := fmt.Sprintf("cut %s %d/%d: gone from the kernel", mode, i+1, b.o.rounds)
			for _, r := range b.tors {
				line += fmt.Sprintf(" of %s after %v;", r.name, took[r][i])
			}
			fmt.Fprintln(os.Stderr, line)
		}
		for _, r := range b.tors {
			result("cut/"+mode+"/"+r.name, took[r], nil)
		}
	}
	return nil
}

// cut cuts off a node once the state has settled, and restores it.
func (b *bench) cut(ctx context.Context, f finding, n *lab.Node, took map[*tor][]time.Duration) error {
	addr := address(1)
	if err := b.routed(ctx, addr, b.c.Nodes...); err != nil {
		return err
	}
	if err := b.watched(ctx, f); err != nil {
		return err
	}
	began := time.Now()
	if err := n.CutLAN(ctx); err != nil {
		return err
	}
	via := " " + n.Addr.String() + " "
	for _, r := range b.tors {
		d, err := r.after(ctx, began, func(e router.Event) bool {
			return e.Prefix.Addr() == addr && !strings.Contains(e.Text+" ", via) && !e.Deleted
		})
		if err != nil {
			return err
		}
		took[r] = append(took[r], d)
	}
	return n.RestoreLAN(ctx)
}

// watched waits until the routers' sessions match the finding.
func (b *bench) watched(ctx context.Context, f finding) error {
	for _, r := range b.tors {
		err := b.c.Eventually(ctx, patience, r.name+" watches every node", func(ctx context.Context) error {
			sessions, err := r.Sessions(ctx)
			if err != nil {
				return err
			}
			for name, s := range sessions {
				if !s.Established || f.neighbor.Hold > 0 && s.Hold != f.neighbor.Hold {
					return fmt.Errorf("the session with %s is %s, with a hold time of %v", name, s.State, s.Hold)
				}
			}
			if f.neighbor.BFD.Multiplier == 0 {
				return nil
			}
			all, err := r.BFD(ctx)
			if err != nil {
				return err
			}
			for _, n := range b.c.Nodes {
				s := all[n.Addr.String()]
				if want := time.Duration(f.neighbor.BFD.Multiplier) * f.neighbor.BFD.Interval; s.State != "Up" || s.Detect != want {
					return fmt.Errorf("BFD with %s is %+v, want it up with %v", n.Name, s, want)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
