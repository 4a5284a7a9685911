package main

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/view"
)

// BenchmarkNodeDeath measures the resource usage of the loop, with the real drivers, until no new connection reaches a
// node that became unreachable. 5,000 Services have 20,000 endpoints on this number of nodes.
func BenchmarkNodeDeath(b *testing.B) {
	for _, nodes := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint("nodes=", nodes), func(b *testing.B) {
			v := manyServices(5000)
			onNodes(v, nodes)
			reach := &settable{}
			reach.Store(&view.Reachability{})
			var cluster *changing
			during := func(b *testing.B, c *changing) error {
				cluster = c
				var cpu time.Duration
				for i := range b.N {
					if i > 0 { // it returns
						b.StopTimer()
						reach.Store(&view.Reachability{})
						if err := c.programmed(b.Context()); err != nil {
							return err
						}
						b.StartTimer()
					}
					before := used()
					dead := view.UnreachableNode{Since: time.Now(), Silent: []view.Witness{view.WitnessEcho}}
					reach.Store(&view.Reachability{Unreachable: map[string]view.UnreachableNode{nodeOf(7): dead}})
					if err := c.programmed(b.Context()); err != nil {
						return err
					}
					cpu += used() - before
				}
				b.ReportMetric(1000*cpu.Seconds()/float64(b.N), "cpu-ms/op")
				b.ReportMetric(float64(5000*4/nodes), "endpoints")
				return nil
			}
			netspace.New(b).Must(b, func() error { return alongside(b, v, reach, during) })
			leftOut := 0
			for _, vs := range cluster.left {
				for _, real := range vs.RealServers {
					if real.Weight == 0 {
						leftOut++
					}
				}
			}
			if leftOut != 5000*4/nodes {
				b.Errorf("%d real servers have weight 0, want %d", leftOut, 5000*4/nodes)
			}
		})
	}
}

func nodeOf(i int) string { return fmt.Sprint("node-", i) }

// onNodes gives each endpoint of the View a separate address, on the nodes round-robin.
func onNodes(v *view.View, nodes int) {
	for i := range nodes {
		addr := netip.AddrFrom4([4]byte{192, 0, byte(i / 256), byte(i % 256)})
		v.Nodes[nodeOf(i)] = view.Node{Addresses: []netip.Addr{addr}}
	}
	for i := range len(v.Services) {
		for _, slice := range v.Slices[serviceKey(i)] {
			for j := range slice.Endpoints {
				at := 4*i + j
				slice.Endpoints[j].Node = nodeOf(at % nodes)
				slice.Endpoints[j].Addr = netip.AddrFrom4([4]byte{198, 51, byte(at / 256), byte(at % 256)})
			}
		}
	}
}

// settable is the reachability that a test sets.
type settable struct {
	atomic.Pointer[view.Reachability]
}

func (*settable) SetNodes(map[string][]netip.Addr) {}
func (*settable) SetGateways([]netip.Addr)         {}
func (s *settable) State() view.Reachability       { return *s.Load() }
