package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/connections"
)

// client is where connections come from.
func (b *Bench) client() *lab.Machine {
	if b.routed != nil {
		return b.Cluster.Remote
	}
	return b.Cluster.Client
}

// connect waits until the Service is served, starts the client, and waits until every connection is established.
func (b *Bench) connect(ctx context.Context) (*lab.Connections, error) {
	kept, every, bound := 10*pods, 100*time.Millisecond, time.Second
	if b.cfg.Conns < kept {
		kept, every, bound = b.cfg.Conns, b.cfg.Every, b.cfg.Bound
	}
	err := b.Cluster.Eventually(ctx, 2*patience, "the Service is served", func(ctx context.Context) error {
		k, err := b.establish(ctx, 5*time.Second+2*every, &connections.Client{
			Targets: b.targets, Kept: kept, Every: every, Bound: bound, Port: b.next,
		})
		if b.next += kept; err != nil {
			return err
		}
		_, _, err = k.Stop()
		return errors.Join(err, k.Drop())
	})
	if err != nil {
		return nil, err
	}
	return b.establish(ctx, patience+2*b.cfg.Every, &connections.Client{
		Targets: b.targets, Kept: b.cfg.Conns, Every: b.cfg.Every, Open: b.cfg.Open, Lines: 3, Bound: b.cfg.Bound, Port: b.next,
	})
}

// establish starts a client and waits until every kept connection is established, and each Pod has some.
func (b *Bench) establish(ctx context.Context, limit time.Duration, c *connections.Client) (*lab.Connections, error) {
	k, err := b.client().StartConnections(ctx, c)
	if err != nil {
		return nil, err
	}
	running := 0
	for _, n := range b.on {
		if b.up[n] {
			running++
		}
	}
	err = b.Cluster.Eventually(ctx, limit, "all connections are established", func(context.Context) error {
		lives, err := k.Lives()
		if err != nil {
			return err
		}
		have, by, broken := 0, map[string]int{}, ""
		for _, l := range lives {
			if l.Cause != connections.Unbroken {
				broken = fmt.Sprintf("; connection %d to %v: %s (%s)", l.N, l.Target, l.Cause, l.Detail)
			}
			if l.Kept && !l.First.IsZero() {
				have++
				by[l.Pod]++
			}
		}
		if have < c.Kept || len(by) < running {
			return fmt.Errorf("%d of %d; of Pods: %v%s", have, c.Kept, by, broken)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, k.Kill())
	}
	return k, nil
}

// station returns the name of the machine with the hardware address.
func (b *Bench) station(mac string) string {
	for _, m := range b.Cluster.Machines() {
		if m.MAC() == mac {
			return m.Name
		}
	}
	return mac
}
