package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// Empty records that a node had no endpoint for new connections of a ClusterIP, though the Service has endpoints.
type Empty struct {
	At   time.Duration
	Node string
	Key  ipvs.Key
}

// clusterIP is a Service with a ClusterIP, which each node forwards to endpoints on up to four nodes.
type clusterIP struct {
	key   pools.ServiceKey
	port  view.Port
	addr  netip.Addr
	slice view.Slice
}

// forwards adds n ClusterIPs, forwarded by every node.
func (a *api) forwards(n int) {
	c := a.cluster
	random := rand.New(rand.NewPCG(c.config.Seed, 4))
	a.slices = map[pools.ServiceKey]map[string]view.Slice{}
	for i := range n {
		s := clusterIP{
			key:  pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("cluster-ip-", i)},
			port: view.Port{Protocol: []ipvs.Protocol{ipvs.TCP, ipvs.UDP}[i%2], Port: 80},
			addr: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 4, 14: byte(i >> 8), 15: byte(i)}),
		}
		s.slice.Ports = []view.Port{s.port}
		for pod := range 1 + random.IntN(4) {
			node := random.IntN(c.config.Nodes)
			s.slice.Endpoints = append(s.slice.Endpoints, view.Endpoint{
				Addr: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 3, 11: byte(node), 12: byte(i >> 8), 13: byte(i), 15: byte(pod)}),
				Node: a.names[node], Ready: true, Serving: true,
			})
		}
		a.clusterIPs = append(a.clusterIPs, s)
		a.services[s.key] = view.Service{
			Addresses: []view.Address{{IP: s.addr, Kind: view.ClusterIP}}, Ports: s.slice.Ports, Created: int64(i),
		}
		a.slices[s.key] = map[string]view.Slice{"pods": s.slice}
	}
}

func (s *clusterIP) at() ipvs.Key {
	return ipvs.Key{Addr: s.addr, Protocol: s.port.Protocol, Port: s.port.Port}
}

// leaveOut passes the unreachable nodes to the planner.
func (s *Speaker) leaveOut(before, now view.Reachability) {
	unreachable := map[string]time.Time{}
	for name, u := range now.Unreachable {
		unreachable[name] = u.Since
	}
	changed := s.touched.Unreachable
	if changed == nil {
		changed = map[string]struct{}{}
	}
	for name, since := range unreachable {
		if was, is := s.view.Unreachable[name]; !is || !was.Equal(since) {
			changed[name] = struct{}{}
		}
	}
	for name := range before.Unreachable {
		if _, still := unreachable[name]; !still {
			changed[name] = struct{}{}
		}
	}
	if len(changed) > 0 {
		s.view.Unreachable, s.touched.Unreachable = unreachable, changed
		s.trigger()
	}
}

// takers returns the nodes that get new connections of a ClusterIP from a node.
func (s *Speaker) takers(svc *clusterIP) (nodes []string) {
	servers := s.desired.Table[svc.at()].RealServers
	for _, e := range svc.slice.Endpoints {
		if servers[netip.AddrPortFrom(e.Addr, svc.port.Port)].Weight > 0 {
			nodes = append(nodes, e.Node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// serves records the ClusterIPs without an endpoint for new connections.
func (s *Speaker) serves() {
	c := s.cluster
	for i := range c.api.clusterIPs {
		svc := &c.api.clusterIPs[i]
		if _, changed := s.planned.Keys[svc.at()]; changed && len(s.takers(svc)) == 0 {
			c.Empty = append(c.Empty, Empty{c.Now(), s.Name, svc.at()})
		}
	}
}
