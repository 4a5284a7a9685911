package main

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// one is a cluster that does not change, and a network on which everything is answered.
type one struct {
	view    *view.View
	touched view.Touched
}

func (o *one) Observe() (*view.View, view.Touched, bool) {
	touched := o.touched
	o.touched = view.Touched{}
	return o.view, touched, true
}

func (*one) Report(map[string]report.VIPStatus) {}

// noMembers is a network without other speakers.
type noMembers struct{}

func (noMembers) Observe() (view.Members, map[string]struct{}, map[view.VIPID]struct{}) {
	return view.Members{}, nil, nil
}
func (noMembers) Publish(view.LocalState)               {}
func (noMembers) SetSegments([]string)                  {}
func (noMembers) CompareSlots(uint64) map[string]uint64 { return nil }
func (noMembers) Retain(time.Duration)                  {}
func (noMembers) Settled()                              {}
func (noMembers) SetPeers(map[string][]netip.Addr)      {}

func (*one) Conflicts() map[netip.Addr]view.Conflict { return nil }
func (*one) SetPeers(map[[6]byte]string)             {}

func (*one) Announce(want map[netip.Addr]ownership.Announcement) (map[netip.Addr][]string, error) {
	held := map[netip.Addr][]string{}
	for addr := range want {
		held[addr] = []string{"eth0"}
	}
	return held, nil
}

func exampleView() *view.View {
	v := view.New()
	v.Nodes["a"] = view.Node{}
	v.Links["eth0"] = view.Link{Name: "eth0", Subnets: prefixes("203.0.113.0/24", "2001:db8::/32")}
	v.Advertisements["all"] = view.Advertisement{}
	for name, svc := range map[string]view.Service{
		"web": {Addresses: []view.Address{{IP: netip.MustParseAddr("203.0.113.4"), Pool: "main"}, {IP: netip.MustParseAddr("2001:db8::4"), Pool: "main"}}},
		"own": {Addresses: []view.Address{{IP: netip.MustParseAddr("203.0.113.5"), Pool: "main"}}, Local: true,
			Restricted: true, Sources: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}},
	} {
		key := pools.ServiceKey{Namespace: "default", Name: name}
		svc.Ports = []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 80}, {Name: "dns", Protocol: ipvs.UDP, Port: 53}}
		slice := view.Slice{Ports: []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 8080}, {Name: "dns", Protocol: ipvs.UDP, Port: 5353}}}
		for addr, node := range map[string]string{"192.0.2.10": "a", "192.0.2.20": "b", "2001:db8:1::10": "a"} {
			slice.Endpoints = append(slice.Endpoints, view.Endpoint{Addr: netip.MustParseAddr(addr), Node: node, Ready: true, Serving: true})
		}
		v.Services[key], v.Slices[key] = svc, map[string]view.Slice{"s": slice}
		for _, a := range svc.Addresses {
			v.VIPs[a.IP.String()] = view.VIP{Addresses: []netip.Addr{a.IP}, Services: []pools.ServiceKey{key}, Nodes: []string{"a"}}
		}
	}
	return v
}

// The loop with the real drivers programs the node as planned and adopts that state after a restart; cleanup removes
// all of it. Without IPVS in the kernel, nftables forwards.
func TestDataPlane(t *testing.T) {
	s := netspace.New(t)
	s.Must(t, func() error {
		config := newConfig()
		config.DetectLocal.Mode = forwarding.ClusterCIDR
		config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		log := slog.New(slog.DiscardHandler)
		node, closeNode, err := openNode(config, log, nil)
		if err != nil {
			return err
		}
		defer closeNode()
		o := options{nodeName: "a", config: config}
		v := exampleView()
		for range 2 {
			untilReady(t, node, o, v)
			compare(t, node, plan.Make(v, o.plan(), time.Now()))
		}
		if err := speaker.Cleanup(t.Context(), node, log); err != nil {
			return err
		}
		compare(t, node, plan.Make(view.New(), plan.Options{Node: "a"}, time.Now()))
		return cleanup(t.Context(), "", log)
	})
}

// untilReady runs the loop until the node is programmed as planned.
func untilReady(t *testing.T, node speaker.Node, o options, v *view.View) {
	t.Helper()
	cluster := &one{view: v}
	loop := speaker.New(speaker.Config{
		NodeName: "a", Plan: o.plan(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Trigger: speaker.NewTrigger(), Source: cluster,
		Node: node, Announcer: cluster, Detector: noMembers{}, Reporter: cluster, Metrics: speaker.NewMetrics(prometheus.NewRegistry()),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // an emulated kernel is slow
	defer cancel()
	go func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for !loop.Health().Ready && ctx.Err() == nil {
			<-ticker.C
		}
		cancel()
	}()
	if err := loop.Run(ctx); err != nil { // on this thread, which is in the namespace
		t.Error(err)
	}
	if h := loop.Health(); !h.Ready {
		t.Fatalf("not ready: %s", h.Reason)
	}
}

// compare compares the node with a plan.
func compare(t *testing.T, node speaker.Node, want *plan.Desired) {
	t.Helper()
	ours, _, err := node.Addresses.List()
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(ours, want.Local) {
		t.Errorf("local addresses %v, want %v", ours, want.Local)
	}
	filter, err := node.Filter.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if changes := ipvs.DiffFilter(filter, want.Filter); len(changes) > 0 {
		t.Errorf("the filter is not as planned: %v", changes)
	}
	for name, part := range map[string]struct {
		driver dataplane.VirtualServers
		want   ipvs.Table
	}{"outside": {node.VirtualServers, want.Table}, "inside": {node.ClusterInternal, want.ClusterInternal}} {
		virtuals, err := part.driver.Virtuals()
		if err != nil {
			t.Fatal(err)
		}
		addrs := map[netip.Addr]struct{}{}
		for key := range virtuals {
			addrs[key.Addr] = struct{}{}
		}
		have, err := part.driver.ListOf(addrs)
		if err != nil {
			t.Fatal(err)
		}
		if !have.Equal(part.want) {
			t.Errorf("%s:\n%vwant:\n%v", name, have, part.want)
		}
	}
}
