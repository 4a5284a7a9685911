package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

const (
	nodeASN   = 65001
	routerASN = 65002
	patience  = 2 * time.Minute
)

// bench is the lab with its routers.
type bench struct {
	o      options
	c      *lab.Cluster
	config string // of the speakers
	tors   []*tor
}

// tor is a router on a machine of the lab.
type tor struct {
	router.Router
	name    string
	machine *lab.Machine
	place   router.Place
	monitor *router.Monitor
}

func run(ctx context.Context, o options) (err error) {
	c, err := lab.New(ctx, lab.Config{Kernel: lab.Native, BGP: true, Progress: os.Stderr})
	if err != nil {
		return err
	}
	b := &bench{o: o, c: c, config: filepath.Join(c.Dir, "speaker.yaml")}
	defer func() {
		if o.logs != "" {
			err = errors.Join(err, c.SaveLogs(o.logs))
		}
		for _, r := range b.tors {
			r.monitor.Stop()
		}
		err = errors.Join(err, c.Close())
	}()
	if err := b.start(ctx); err != nil {
		return err
	}
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/bgp\n", runtime.GOOS, runtime.GOARCH)
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{{"update", b.updates}, {"cut", b.cuts}, {"prefixes", b.tables}} {
		if !slices.Contains(o.parts, part.name) {
			continue
		}
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// start starts the product and the routers.
func (b *bench) start(ctx context.Context) error {
	if err := os.WriteFile(b.config, []byte("dataplane: nftables\n"), 0o600); err != nil {
		return err
	}
	if _, err := b.c.StartCCM(ctx, "--leader-elect=false"); err != nil {
		return err
	}
	if err := b.c.StartSpeakers(ctx, "--config", b.config); err != nil {
		return err
	}
	for i, on := range []*lab.Machine{b.c.Router, b.c.Client} {
		kind := []string{"bird", "frr"}[i]
		r := &tor{name: kind, machine: on, place: router.Place{Host: on.Host(), Namespace: "/run/netns/" + on.Namespace, Logs: b.c.Dir}}
		var err error
		if r.Router, err = router.Kinds[kind](ctx, r.place, r.config(b.c.Nodes, router.Neighbor{})); err != nil {
			return err
		}
		if r.monitor, err = r.place.Monitor(ctx); err != nil {
			return err
		}
		b.tors = append(b.tors, r)
	}
	return b.c.ApplyYAML(ctx, fmt.Sprintf(`
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: routed}
spec: {addresses: [%q]}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: routed}
spec: {ipAddressPools: [routed]}
`, lab.FreeRange))
}

// config returns the router's configuration, with a session over IPv4 for each node; like has the common settings.
func (r *tor) config(nodes []*lab.Node, like router.Neighbor) router.Config {
	c := router.Config{ASN: routerASN, ID: r.machine.Addr}
	for _, n := range nodes {
		like.Name, like.Address, like.ASN = n.Name, n.Addr, nodeASN
		c.Neighbors = append(c.Neighbors, like)
	}
	return c
}

// peers writes the BGPPeers of all routers, and configures these accordingly.
func (b *bench) peers(ctx context.Context, spec string, like router.Neighbor) error {
	for _, r := range b.tors {
		if err := r.Configure(ctx, r.config(b.c.Nodes, like)); err != nil {
			return err
		}
		if err := b.c.ApplyYAML(ctx, fmt.Sprintf(`
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: %s}
spec: {myASN: %d, peerASN: %d, peerAddress: %q, connectTime: 1s, %s}
`, r.name, nodeASN, routerASN, r.machine.Addr, spec)); err != nil {
			return err
		}
	}
	return nil
}

// address returns the i-th address of the pool.
func address(i int) netip.Addr {
	a := lab.FreeRange.Addr()
	for range i + 1 {
		a = a.Next()
	}
	return a
}

// routed waits until every router's kernel routes the address through exactly these nodes.
func (b *bench) routed(ctx context.Context, addr netip.Addr, nodes ...*lab.Node) error {
	var want []netip.Addr
	for _, n := range nodes {
		want = append(want, n.Addr)
	}
	for _, r := range b.tors {
		err := b.c.Eventually(ctx, patience, fmt.Sprintf("%s has %v by way of %v", r.name, addr, want), func(ctx context.Context) error {
			routes, err := r.Routes(ctx, 4)
			if err != nil {
				return err
			}
			var have []netip.Addr
			for _, route := range routes {
				if route.Prefix == netip.PrefixFrom(addr, 32) {
					have = append(have, route.Via...)
				}
			}
			if !slices.Equal(have, want) {
				return fmt.Errorf("it has %v", routes)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// after waits for the first wanted change of the router's kernel routes since a moment, and returns the time from the
// moment to it.
func (r *tor) after(ctx context.Context, since time.Time, wanted func(router.Event) bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	e, err := r.monitor.Wait(ctx, func(e router.Event) bool { return !e.At.Before(since) && wanted(e) })
	if err != nil {
		return 0, fmt.Errorf("%s: %w", r.name, err)
	}
	return e.At.Sub(since), nil
}
