package speaker

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// quick is an in-memory node and network. A change costs in proportion to its size.
type quick struct {
	filter ipvs.Filter
	addrs  map[netip.Addr]struct{}
}

func (q *quick) List(context.Context) (ipvs.Filter, error)      { return maps.Clone(q.filter), nil }
func (q *quick) Check(context.Context) (bool, error)            { return q.filter != nil, nil }
func (q *quick) Remove(context.Context) error                   { return nil }
func (q *quick) Apply(bool) ([]string, dataplane.SysctlErrors)  { return nil, dataplane.SysctlErrors{} }
func (q *quick) Report(map[string]report.VIPStatus)             {}
func (q *quick) Clean(context.Context, ipvs.Table) (int, error) { return 0, nil }

func (q *quick) Build(_ context.Context, want ipvs.Filter) (int, error) {
	q.filter = maps.Clone(want)
	return len(want), nil
}

func (q *quick) Update(_ context.Context, changes []ipvs.FilterChange) (int, error) {
	for _, c := range changes {
		if c.Delete {
			delete(q.filter, c.Element)
		} else {
			q.filter[c.Element] = struct{}{}
		}
	}
	return len(changes), nil
}

func (q *quick) Announce(want map[netip.Addr]ownership.Announcement) (map[netip.Addr][]string, error) {
	held := make(map[netip.Addr][]string, len(want))
	for addr := range want {
		held[addr] = []string{"eth0"}
	}
	return held, nil
}

func (q *quick) Conflicts() map[netip.Addr]view.Conflict { return nil }
func (q *quick) SetPeers(map[[6]byte]string)             {}

// quickDetector receives no other member.
type quickDetector struct{}

func (quickDetector) Observe() (view.Members, map[string]struct{}, map[view.VIPID]struct{}) {
	return view.Members{}, nil, nil
}
func (quickDetector) Publish(view.LocalState)               {}
func (quickDetector) SetSegments([]string)                  {}
func (quickDetector) CompareSlots(uint64) map[string]uint64 { return nil }
func (quickDetector) Retain(time.Duration)                  {}
func (quickDetector) Settled()                              {}
func (quickDetector) SetPeers(map[string][]netip.Addr)      {}

// quickAddresses are the addresses of a quick node.
type quickAddresses struct{ *quick }

func (q quickAddresses) List() (ours, others map[netip.Addr]struct{}, err error) {
	return maps.Clone(q.addrs), map[netip.Addr]struct{}{}, nil
}

func (q quickAddresses) Add(addr netip.Addr) (bool, error) {
	q.addrs[addr] = struct{}{}
	return true, nil
}

func (q quickAddresses) Remove(addr netip.Addr) (bool, error) {
	delete(q.addrs, addr)
	return true, nil
}

// quickSource returns the objects that the benchmark touched.
type quickSource struct {
	view    *view.View
	touched view.Touched
}

func (q *quickSource) Observe() (*view.View, view.Touched, bool) {
	touched := q.touched
	q.touched = view.Touched{}
	return q.view, touched, true
}

// many returns a View of n Services of three ports and four endpoints each, with a VirtualIP each.
func many(n int) *view.View {
	v := baseView()
	for i := range n {
		addr := numbered(1, i)
		service(v, fmt.Sprint("s", i), addr, []uint16{80, 443, 53}, 4, "a", "b")
		slice := v.Slices[named(fmt.Sprint("s", i))]["s"]
		for j := range slice.Endpoints {
			slice.Endpoints[j].Addr = numbered(2, 4*i+j)
		}
	}
	return v
}

// numbered returns the i-th address of a network.
func numbered(network uint16, i int) netip.Addr {
	b := netip.MustParseAddr("2001:db8::").As16()
	binary.BigEndian.PutUint16(b[4:], network)
	binary.BigEndian.PutUint32(b[12:], uint32(i))
	return netip.AddrFrom16(b)
}

func quickSpeaker(v *view.View) (*Speaker, *quickSource) {
	q := &quick{addrs: map[netip.Addr]struct{}{}}
	source := &quickSource{view: v}
	return New(Config{
		NodeName: "a", Plan: options, Log: slog.New(slog.DiscardHandler), Trigger: NewTrigger(), Source: source,
		Node: Node{Drivers: dataplane.Drivers{VirtualServers: ipvstest.NewKernel(), Filter: q, Addresses: quickAddresses{q}, Sysctls: q,
			Conntrack: q}},
		Announcer: q, Detector: quickDetector{}, Reporter: q, Metrics: NewMetrics(prometheus.NewRegistry()),
	}), source
}

// BenchmarkOneEndpoint measures one reconcile, including the observation of the node, after one endpoint of one Service
// was added or removed.
func BenchmarkOneEndpoint(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprint("services=", n), func(b *testing.B) {
			s, source := quickSpeaker(many(n))
			if err := s.reconcile(b.Context()); err != nil {
				b.Fatal(err)
			}
			key := named("s7")
			slice := source.view.Slices[key]["s"]
			endpoints := slice.Endpoints
			runtime.GC() // collect garbage of the setup
			for i := 0; b.Loop(); i++ {
				slice.Endpoints = endpoints[:3+i%2]
				source.view.Slices[key]["s"] = slice
				source.touched.Services = map[pools.ServiceKey]struct{}{key: {}}
				if err := s.reconcile(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStart measures the first reconcile, on an empty node.
func BenchmarkStart(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprint("services=", n), func(b *testing.B) {
			v := many(n)
			for b.Loop() {
				s, _ := quickSpeaker(v)
				if err := s.reconcile(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAudit measures the observation of an unchanged node, without the comparison of virtual servers
// (BenchmarkList of ipvs/kernel has it): no time passes between two audits.
func BenchmarkAudit(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprint("services=", n), func(b *testing.B) {
			s, _ := quickSpeaker(many(n))
			if err := s.reconcile(b.Context()); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				s.audited = s.audited.Add(-2 * auditEvery)
				if err := s.reconcile(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
