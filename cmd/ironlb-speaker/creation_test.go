package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/view"
)

// The addresses of a client, a node and a Pod.
const pathClient, pathNode, pathPod, pathGateway = "198.51.100.2", "198.51.100.1", "192.0.2.10", "192.0.2.1"

// threeSpaces are a client, a node and a Pod that serves TCP at 8080 and UDP at 5353, connected through the node.
func threeSpaces(t *testing.T) (client, node, pod *netspace.Space) {
	t.Helper()
	client, node, pod = netspace.New(t), netspace.New(t), netspace.New(t)
	netspace.Join(t, client, "eth0", pathClient+"/24", node, "eth0", pathNode+"/24")
	netspace.Join(t, pod, "eth0", pathPod+"/25", node, "pod0", pathGateway+"/25")
	client.Route(t, "203.0.113.0/24", pathNode)
	pod.Route(t, "0.0.0.0/0", pathGateway)
	pod.ServeUDP(t, pathPod+":5353", "pod")
	pod.ServeTCP(t, pathPod+":8080", "pod")
	return client, node, pod
}

// viewOfPod is exampleView with the Pod as the only endpoint.
func viewOfPod() *view.View {
	v := exampleView()
	for key, slices := range v.Slices {
		slice := slices["s"]
		slice.Endpoints = []view.Endpoint{{Addr: netip.MustParseAddr(pathPod), Node: "a", Ready: true, Serving: true}}
		v.Slices[key] = map[string]view.Slice{"s": slice}
	}
	return v
}

// runLoop runs the loop with the real drivers on the node until the end of the test; the context ends with it.
func runLoop(t *testing.T, node *netspace.Space, source speaker.Source, trigger *speaker.Trigger) context.Context {
	t.Helper()
	config := newConfig()
	config.DetectLocal.Mode = forwarding.ClusterCIDR
	config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25")}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	var loop sync.WaitGroup
	loop.Go(func() {
		if err := node.Do(func() error {
			drivers, closeDrivers, err := openNode(config, slog.New(slog.DiscardHandler), nil)
			if err != nil {
				return err
			}
			defer closeDrivers()
			return speaker.New(speaker.Config{
				NodeName: "a", Plan: options{nodeName: "a", config: config}.plan(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
				Trigger: trigger, Source: source, Node: drivers, Announcer: &one{}, Detector: noMembers{}, Reporter: &one{},
				Metrics: speaker.NewMetrics(prometheus.NewRegistry()),
			}).Run(ctx)
		}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); loop.Wait() })
	return ctx
}

// While Services are added one after the other, their clients send requests continuously: they are answered or wait,
// and are never refused.
func TestNoClientIsRefusedWhileAServiceComes(t *testing.T) {
	const services = 20
	client, node, _ := threeSpaces(t)
	cluster, trigger := &growing{view: exampleView()}, speaker.NewTrigger()
	ctx := runLoop(t, node, cluster, trigger)
	// Requests must be frequent enough to meet the moment, and still allow for a handshake: an emulated kernel takes
	// longer.
	began := time.Now()
	if _, err := client.DialWithin(5*time.Second, "tcp", "", pathNode+":1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("a closed port of the node: %v", err)
	}
	patience := max(3*time.Millisecond, 10*time.Since(began))
	for i := range services {
		vip := netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + i)})
		to, waited, asking := netip.AddrPortFrom(vip, 80).String(), 0, make(chan struct{})
		var begin sync.Once
		go func() {
			<-asking
			cluster.add(fmt.Sprint("new-", i), vip, netip.MustParseAddr(pathPod))
			trigger.Now()
		}()
		for {
			conn, err := client.DialWithin(patience, "tcp", "", to)
			if err == nil {
				conn.Close()
				break
			}
			begin.Do(func() { close(asking) })
			waited++
			if errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil {
				t.Fatalf("%s, asked %d times: %v", to, waited, err)
			}
		}
		if waited == 0 {
			t.Errorf("%s answered before there was a Service", to)
		}
	}
}

// growing is a cluster to which Services are added.
type growing struct {
	mu      sync.Mutex
	view    *view.View
	pending []func() pools.ServiceKey
	planned bool
}

func (g *growing) add(name string, vip, pod netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = append(g.pending, func() pools.ServiceKey {
		key := pools.ServiceKey{Namespace: "default", Name: name}
		g.view.Services[key] = view.Service{
			Addresses: []view.Address{{IP: vip, Pool: "main"}}, Ports: []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 80}},
		}
		g.view.Slices[key] = map[string]view.Slice{"s": {
			Ports:     []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 8080}},
			Endpoints: []view.Endpoint{{Addr: pod, Node: "a", Ready: true, Serving: true}},
		}}
		return key
	})
}

func (g *growing) Observe() (*view.View, view.Touched, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	touched := view.Touched{All: !g.planned, Services: map[pools.ServiceKey]struct{}{}}
	for _, add := range g.pending {
		touched.Services[add()] = struct{}{}
	}
	g.pending, g.planned = nil, true
	return g.view, touched, true
}
