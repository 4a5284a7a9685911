package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/steady"
)

const candidates = 3 // number of candidate nodes

// bench is the lab with the measured peer.
type bench struct {
	o     options
	c     *lab.Cluster
	nodes []*lab.Node // candidates
	runs  []*lab.Node // nodes with the peer's programs
	port  lab.Port
	w     *steady.Watcher // of the running peer

	controlled bool // ironlb-ccm runs
}

func run(ctx context.Context, o options) (err error) {
	c, err := lab.New(ctx, lab.Config{Nodes: candidates + 1, Kernel: lab.Native, Bare: !o.ours(), Progress: os.Stderr})
	if err != nil {
		return err
	}
	b := &bench{o: o, c: c, nodes: c.Nodes[:candidates], runs: c.Nodes[:candidates]}
	defer func() {
		if o.logs != "" {
			err = errors.Join(err, c.SaveLogs(o.logs))
		}
		err = errors.Join(err, c.Close())
	}()
	if b.port, err = c.AddPort(ctx, "watch"); err != nil {
		return err
	}
	header()
	for _, family := range o.families {
		for _, name := range o.peers {
			if err := b.measure(ctx, name, family); err != nil {
				return fmt.Errorf("%s %s: %w", name, family, err)
			}
		}
	}
	return nil
}

// header prints the header of Go's benchmark format.
func header() {
	const pkg = "github.com/ironlb/ironlb/test/bench/failover"
	fmt.Printf("goos: %s\ngoarch: %s\npkg: %s\n", runtime.GOOS, runtime.GOARCH, pkg)
}

// measure runs all rounds of one peer.
func (b *bench) measure(ctx context.Context, name, family string) (err error) {
	for _, n := range b.nodes { // removes the state of the previous peer
		if err := errors.Join(n.PowerOff(ctx), n.PowerOn(ctx)); err != nil {
			return err
		}
	}
	p := newPeer(b, name, family)
	defer func() { err = errors.Join(err, p.stop(context.WithoutCancel(ctx))) }()
	if err := p.start(ctx); err != nil {
		return err
	}
	b.w, err = steady.Watch(ctx, steady.WatchConfig{
		Namespace: b.port.Namespace, Interface: b.port.Interface,
		From4: lab.AskFrom, From6: lab.AskFrom6, Addrs: p.addrs(),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.w.Close()) }()
	for _, f := range faults {
		if !slices.Contains(b.o.faults, f.name) || !p.has(f.name) {
			continue
		}
		var all []outcome
		for i := range b.o.rounds {
			out, err := b.round(ctx, p, f, i)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", f.name, i+1, err)
			}
			all = append(all, out)
			fmt.Fprintf(os.Stderr, "%s %s %s %d/%d: %s\n", name, family, f.name, i+1, b.o.rounds, out)
		}
		result(strings.Join([]string{f.name, name, family}, "/"), all)
	}
	return nil
}

const (
	settleLimit  = 2 * time.Minute
	recoverLimit = 20 * time.Second
	steadySpan   = time.Second
	steadyGap    = 100 * time.Millisecond
)

// settle waits until every candidate could take over and each address has one answering station.
func (b *bench) settle(ctx context.Context, p peer) (owners map[netip.Addr]string, err error) {
	err = b.c.Eventually(ctx, settleLimit, "each address has one answerer, and every node is ready", func(ctx context.Context) error {
		for _, n := range b.runs {
			if err := p.ready(ctx, n); err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
		}
		owners = b.w.Owners(time.Now(), steadySpan)
		for addr, mac := range owners {
			if b.byMAC(mac) == nil {
				now := time.Now()
				return fmt.Errorf("%v is answered by %q; seen in the last second: %+v", addr, mac, b.w.Seen(addr, now.Add(-steadySpan), now))
			}
		}
		return nil
	})
	return owners, err
}

// round injects the fault once.
func (b *bench) round(ctx context.Context, p peer, f fault, i int) (out outcome, err error) {
	owners, err := b.settle(ctx, p)
	if err != nil {
		return out, err
	}
	addr := p.addrs()[i%len(p.addrs())]
	node := b.byMAC(owners[addr])
	client, err := steady.Start(b.c.Client.Namespace, p.target(addr))
	if err != nil {
		return out, err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, client.Stop())
		}
	}()
	err = b.c.Eventually(ctx, time.Minute, fmt.Sprintf("a steady client of %v", addr), func(context.Context) error {
		if now := time.Now(); !client.Steady(now, steadySpan, steadyGap) {
			return errors.New(client.Report(now.Add(-steadySpan), now).String())
		}
		return nil
	})
	if err != nil {
		return out, err
	}

	began := time.Now()
	if err := f.do(ctx, b, p, node); err != nil {
		return out, err
	}
	if f.hold > 0 {
		if err := wait(ctx, f.hold); err != nil {
			return out, err
		}
	}
	if f.end != nil {
		if err := f.end(ctx, b, p, node); err != nil {
			return out, err
		}
	}
	out.recovered, err = b.recovered(ctx, client, addr, node, began)
	if err != nil {
		return out, err
	}
	ended := time.Now()
	if f.heal != nil {
		if err := f.heal(ctx, b, p, node); err != nil {
			return out, err
		}
	}
	if _, err := b.settle(ctx, p); err != nil {
		return out, err
	}
	healed := time.Now()
	stopped = true
	if err := client.Stop(); err != nil {
		return out, err
	}
	out.node, out.addr = node.Name, addr
	out.fault, out.back = client.Report(began, ended), client.Report(ended, healed)
	for _, a := range p.addrs() {
		seen := b.w.Seen(a, began.Add(-steadySpan), healed)
		out.moves += seen.Moves()
		out.duplicates += seen.Duplicates
	}
	return out, nil
}

// recovered waits until the client has been served for a second again and another node has answered for the address. It
// returns false if this does not happen within recoverLimit.
func (b *bench) recovered(ctx context.Context, client *steady.Client, addr netip.Addr, node *lab.Node, began time.Time) (bool, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(recoverLimit); time.Now().Before(limit); {
		now := time.Now()
		moved := slices.ContainsFunc(b.w.Seen(addr, began, now).All, func(mac string) bool { return mac != node.MAC() })
		if moved && now.Sub(began) > steadySpan && client.Steady(now, steadySpan, steadyGap) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-tick.C:
		}
	}
	return false, b.c.Err()
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// withPods reports whether the rows have Pods on every node.
func (b *bench) withPods() bool { return b.o.rows == rowsPods }

func (b *bench) candidateNames() (names []string) {
	for _, n := range b.nodes {
		names = append(names, n.Name)
	}
	return names
}

// index of a candidate.
func (b *bench) index(n *lab.Node) int { return slices.Index(b.nodes, n) }

// byMAC returns the candidate with that hardware address, or nil.
func (b *bench) byMAC(mac string) *lab.Node {
	for _, n := range b.nodes {
		if n.MAC() == mac {
			return n
		}
	}
	return nil
}

// free returns unused addresses of the LAN.
func (b *bench) free(family string) (out []netip.Addr) {
	from := lab.FreeRange
	if family == "ipv6" {
		from = lab.FreeRange6
	}
	for a := from.Addr().Next(); len(out) < b.o.addresses; a = a.Next() {
		out = append(out, a)
	}
	return out
}
