package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

// BenchmarkIdle measures the resource usage of the loop, with the real drivers, on an idle node: an op is one second of
// it. Run it with -benchtime 20x.
func BenchmarkIdle(b *testing.B) {
	atSizes(b, func(b *testing.B, _ *changing) error {
		start, before := time.Now(), used()
		time.Sleep(time.Duration(b.N) * time.Second)
		b.ReportMetric(1000*(used()-before).Seconds()/time.Since(start).Seconds(), "cpu-ms/s")
		return nil
	})
}

// BenchmarkChange measures the resource usage of the loop, with the real drivers, for one changed endpoint.
func BenchmarkChange(b *testing.B) {
	atSizes(b, func(b *testing.B, c *changing) error {
		before := used()
		for i := range b.N {
			if err := c.change(b.Context(), i); err != nil {
				return err
			}
		}
		b.ReportMetric(1000*(used()-before).Seconds()/float64(b.N), "cpu-ms/op")
		return nil
	})
}

// atSizes measures during a loop with few Services, and with many.
func atSizes(b *testing.B, during func(*testing.B, *changing) error) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			netspace.New(b).Must(b, func() error { return alongside(b, manyServices(n), nil, during) })
		})
	}
}

// alongside runs a loop and, once the node is programmed as planned, the measured function.
func alongside(b *testing.B, v *view.View, reach speaker.Reach, during func(*testing.B, *changing) error) error {
	config, log := newConfig(), slog.New(slog.DiscardHandler)
	config.ServiceProxy = true
	config.Conntrack = conntrackLimits{} // only the initial network namespace can set its size
	config.DetectLocal.Mode = forwarding.ClusterCIDR
	config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	node, closeNode, err := openNode(config, log, nil)
	if err != nil {
		return err
	}
	defer closeNode()
	cluster := &changing{
		one: one{view: v, touched: view.Touched{All: true}}, trigger: speaker.NewTrigger(), applied: make(chan time.Time, 1),
	}
	loop := speaker.New(speaker.Config{
		NodeName: "a", Plan: options{nodeName: "a", config: config}.plan(), Log: log, Trigger: cluster.trigger, Source: cluster, Node: node,
		Announcer: cluster, Detector: noMembers{}, Reporter: cluster, Metrics: speaker.NewMetrics(prometheus.NewRegistry()), Progress: cluster,
		Reach: reach,
	})
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	done := make(chan error, 1)
	// The namespace belongs to this thread: the loop must stay on it.
	go func() {
		defer stop()
		waitReady(b, ctx, loop)
		b.ResetTimer()
		done <- during(b, cluster)
	}()
	err = errors.Join(loop.Run(ctx), <-done)
	addrs := map[netip.Addr]struct{}{}
	for _, svc := range v.Services {
		addrs[svc.Addresses[0].IP] = struct{}{}
	}
	table, listed := node.VirtualServers.ListOf(addrs)
	cluster.left = table
	return errors.Join(err, listed)
}

// changing is a cluster whose first Service changes.
type changing struct {
	one
	trigger *speaker.Trigger
	changed atomic.Bool
	last    netip.Addr // of its last endpoint
	left    ipvs.Table // the virtual servers at the end
	applied chan time.Time
}

// change changes the last endpoint and waits until the node is programmed as planned.
func (c *changing) change(ctx context.Context, i int) error {
	c.last = netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + i%2)})
	c.changed.Store(true)
	return c.programmed(ctx)
}

// programmed triggers the loop and waits until the node is programmed as planned.
func (c *changing) programmed(ctx context.Context) error {
	began := time.Now()
	c.trigger.Now()
	for {
		select {
		case before := <-c.applied:
			if before.After(began) {
				return nil
			}
		case <-ctx.Done():
			return errors.New("the loop ended")
		case <-time.After(time.Minute):
			return errors.New("the change is not applied within a minute")
		}
	}
}

// Observe implements speaker.Source.
func (c *changing) Observe() (*view.View, view.Touched, bool) {
	v, touched, ok := c.one.Observe()
	if c.changed.Swap(false) {
		key := serviceKey(0)
		slice := sliceOf(0)
		slice.Endpoints[3].Addr = c.last
		v.Slices[key] = map[string]view.Slice{"s": slice}
		touched.Services = map[pools.ServiceKey]struct{}{key: {}}
	}
	return v, touched, ok
}

// Applied and SetNode implement speaker.Progress.
func (c *changing) Applied(before time.Time) {
	select {
	case <-c.applied:
	default:
	}
	c.applied <- before
}

func (*changing) SetNode(bool) {}

func waitReady(b *testing.B, ctx context.Context, loop *speaker.Speaker) {
	err := eventually.Poll(ctx, 50*time.Millisecond, 5*time.Minute, "the node as planned", func(context.Context) error {
		h := loop.Health()
		return eventually.Unless(h.Ready, "%s", h.Reason)
	})
	if err != nil {
		b.Error(err)
	}
}

// used returns the CPU time of this process and of its children.
func used() (d time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		_ = syscall.Getrusage(who, &u)
		d += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return d
}

// manyServices returns a View of n Services of one port and four endpoints.
func manyServices(n int) *view.View {
	v := view.New()
	v.Nodes["a"] = view.Node{}
	for i := range n {
		key := serviceKey(i)
		v.Services[key] = view.Service{
			Addresses: []view.Address{{IP: netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i%200)}), Kind: view.ClusterIP}},
			Ports:     []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: uint16(1000 + i/200)}}, NodePorts: true,
		}
		v.Slices[key] = map[string]view.Slice{"s": sliceOf(i)}
	}
	return v
}

func serviceKey(i int) pools.ServiceKey {
	return pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("s", i)}
}

func sliceOf(i int) view.Slice {
	slice := view.Slice{Ports: []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: uint16(1000 + i)}}}
	for j := range 4 {
		slice.Endpoints = append(slice.Endpoints, view.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + j)}), Node: "a", Ready: true, Serving: true})
	}
	return slice
}

// BenchmarkObserve measures the parts of an audit on an empty node, and the other periodic checks.
func BenchmarkObserve(b *testing.B) {
	for _, part := range []struct {
		name    string
		observe func(context.Context, speaker.Node) error
	}{
		{"addresses", func(_ context.Context, n speaker.Node) error { _, _, err := n.Addresses.List(); return err }},
		{"filter", func(ctx context.Context, n speaker.Node) error { _, err := n.Filter.Check(ctx); return err }},
		{"virtuals", func(_ context.Context, n speaker.Node) error { _, err := n.VirtualServers.Virtuals(); return err }},
		{"inside", func(_ context.Context, n speaker.Node) error { _, err := n.ClusterInternal.Virtuals(); return err }},
		{"sysctls", func(_ context.Context, n speaker.Node) error { _, wrong := n.Sysctls.Apply(false); return wrong.All }},
		{"sysctls6", func(_ context.Context, n speaker.Node) error { _, wrong := n.Sysctls.Apply(true); return wrong.All }},
		{"generation", func(context.Context, speaker.Node) error { _, err := nft.Generation(); return err }},
		{"traces", func(context.Context, speaker.Node) error { _, _, err := kubeproxy.KernelTraces(); return err }},
		{"policies", func(ctx context.Context, _ speaker.Node) error { _, _, err := nft.Policies{}.Apply(ctx); return err }},
	} {
		b.Run(part.name, func(b *testing.B) {
			netspace.New(b).Must(b, func() error {
				config := newConfig()
				config.ServiceProxy = true
				node, closeNode, err := openNode(config, slog.New(slog.DiscardHandler), nil)
				if err != nil {
					return err
				}
				defer closeNode()
				b.ReportAllocs()
				if err := part.observe(b.Context(), node); err != nil {
					b.Log(err)
				}
				before := used()
				b.ResetTimer()
				for range b.N {
					_ = part.observe(b.Context(), node)
				}
				b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op")
				return nil
			})
		})
	}
}
