package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// step changes one object of a View, as an informer's event does.
type step struct {
	kind, a, b int
	seed       uint64
}

const kinds = 31

func randomSteps(r *rand.Rand, n int) []step {
	steps := make([]step, n)
	for i := range steps {
		steps[i] = step{kind: r.IntN(kinds), a: r.IntN(5), b: r.IntN(3), seed: r.Uint64()}
	}
	return steps
}

func randomOptions(r *rand.Rand, node string) Options {
	o := Options{
		Node: node, BGP: true,
		Options: forwarding.Options{
			ServiceProxy: r.IntN(2) == 0, EndpointChecks: r.IntN(2) == 0,
			DrainLimit: time.Duration(r.IntN(3)) * 5 * time.Minute, ResetAfter: one(r, 0, 10*time.Second, time.Minute),
		},
	}
	if r.IntN(3) == 0 {
		o.NodePortCIDRs = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/30"), netip.MustParsePrefix("2001:db8:0:9::/64")}
	}
	if r.IntN(2) == 0 {
		o.ExternalIPs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/30"), netip.MustParsePrefix("2001:db8::/64")}
	}
	switch r.IntN(6) {
	case 0:
		o.DetectLocal = forwarding.DetectLocal{Mode: forwarding.BridgeInterface, Interface: "cni0"}
	case 1:
		o.DetectLocal = forwarding.DetectLocal{Mode: forwarding.InterfaceNamePrefix, Interface: "cali"}
	case 2, 3:
		o.DetectLocal = forwarding.DetectLocal{Mode: forwarding.ClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/26")}}
	}
	return o
}

func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// apply changes the View and returns what was touched.
func (s step) apply(v *view.View) view.Touched {
	r := rand.New(rand.NewPCG(s.seed, 0))
	key := pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("s", s.a)}
	services := view.Touched{Services: map[pools.ServiceKey]struct{}{key: {}}}
	name := fmt.Sprint("n", s.b)
	switch s.kind {
	case 0, 1:
		v.Services[key] = randomService(r)
		return services
	case 2:
		delete(v.Services, key)
		return services
	case 3, 4, 5:
		if v.Slices[key] == nil {
			v.Slices[key] = map[string]view.Slice{}
		}
		v.Slices[key][fmt.Sprint(s.b)] = randomSlice(r)
		services.Slices = services.Services
		return services
	case 6:
		delete(v.Slices[key], fmt.Sprint(s.b))
		services.Slices = services.Services
		return services
	case 7:
		v.Nodes[name] = randomNode(r, s.b)
		return view.Touched{Nodes: map[string]struct{}{name: {}}}
	case 8:
		addr := netip.AddrFrom4([4]byte{203, 0, 113, byte(s.a)})
		nodes := []string{"n0", "n1", "n2"}
		first := r.IntN(3)
		v.VIPs[addr.String()] = view.VIP{
			Addresses:     []netip.Addr{addr},
			Services:      []pools.ServiceKey{key, {Namespace: "default", Name: fmt.Sprint("s", r.IntN(5))}},
			Nodes:         append(nodes[first:], nodes[:first]...)[:r.IntN(4)],
			ReportedOwner: one(r, "", "n0", "n1"), Generation: int64(r.IntN(3)), Contested: r.IntN(2) == 0,
		}
		return view.Touched{VIPs: map[string]struct{}{addr.String(): {}}}
	case 9:
		v.Advertisements[fmt.Sprint(s.b)] = randomAdvertisement(r)
		pool := fmt.Sprint("p", r.IntN(2))
		v.Pools[pool] = view.Pool{Labels: map[string]string{"tier": fmt.Sprint(r.IntN(2))}, Ranges: v.Pools[pool].Ranges, Created: v.Pools[pool].Created}
		return view.Touched{Advertisements: true, BGPAdvertisements: true}
	case 10, 11:
		check := view.Check{Node: name, Addr: nodeAddress(s.b, r.IntN(2) == 0), Port: one[uint16](r, 10256, 31000), Path: one(r, "/", "/healthz")}
		if r.IntN(2) == 0 {
			check = view.Check{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + r.IntN(6))}), Port: one[uint16](r, 8080, 8081)}
		}
		incremental.Set(v.Checks, check, view.CheckResult{Healthy: r.IntN(2) == 0, Weight: uint32(r.IntN(4))}, r.IntN(3) > 0) // results of removed checks are deleted
		return view.Touched{Checks: map[view.Check]struct{}{check: {}}}
	case 12:
		clear(v.Host)
		for range r.IntN(4) {
			v.Host[one(r, nodeAddress(1, true), netip.MustParseAddr("198.51.100.3"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fe80::1"))] = struct{}{}
		}
		return view.Touched{Host: true}
	case 13:
		network := netip.MustParsePrefix(one(r, "203.0.113.2/31", "203.0.113.2/32", "2001:db8::2/127", "10.96.0.0/12"))
		incremental.Set(v.ServiceNetworks, fmt.Sprint(s.b), []netip.Prefix{network}, r.IntN(3) > 0)
		return view.Touched{ServiceNetworks: true}
	case 27:
		pool := fmt.Sprint("p", r.IntN(2))
		first := r.IntN(5)
		ranges := []pools.Range{{First: netip.AddrFrom4([4]byte{203, 0, 113, byte(first)}), Last: netip.AddrFrom4([4]byte{203, 0, 113, byte(first + r.IntN(3))})}}
		p, had := v.Pools[pool]
		labelled := len(p.Labels) > 0
		p.Ranges, p.Created = ranges, int64(r.IntN(3))
		incremental.Set(v.Pools, pool, p, !had || r.IntN(4) > 0)
		_, has := v.Pools[pool]
		gone := labelled && !has
		return view.Touched{Pools: true, Advertisements: gone, BGPAdvertisements: gone}
	case 28:
		clear(v.Gateways)
		if r.IntN(2) == 0 {
			v.Gateways[netip.AddrFrom4([4]byte{203, 0, 113, byte(r.IntN(6))})] = struct{}{}
		}
		return view.Touched{Gateways: true}
	case 29:
		name := one(r, "kubernetes", "other")
		apiServer := pools.ServiceKey{Namespace: "default", Name: "kubernetes"}
		v.Slices[apiServer] = map[string]view.Slice{name: {Endpoints: []view.Endpoint{{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(r.IntN(6))})}}}}
		return view.Touched{Slices: map[pools.ServiceKey]struct{}{apiServer: {}}}
	case 30:
		incremental.Set(v.Unreachable, name, time.Unix(r.Int64N(1800), 0), r.IntN(3) > 0) // before or after the present time of a test
		return view.Touched{Unreachable: map[string]struct{}{name: {}}}
	}
	if s.kind >= 22 {
		return s.bgp(v, r)
	}
	if s.kind > 14 {
		return s.members(v, r)
	}
	if r.IntN(2) == 0 {
		v.OtherProxy[key] = struct{}{}
	} else {
		delete(v.OtherProxy, key)
	}
	return view.Touched{ServiceNetworks: true}
}

// members changes the state of the other members or of this node, as the detector and the loop do.
func (s step) members(v *view.View, r *rand.Rand) view.Touched {
	v.Members = copyOf(v.Members)
	name := [...]string{"n0", "n3", "n2"}[s.b] // n1 plans; no list names n3
	addr := netip.AddrFrom4([4]byte{203, 0, 113, byte(s.a)})
	switch {
	case s.kind < 17:
		m := v.Members.Peers[name]
		m.Alive, m.Observer, m.Leaving, m.Synced, m.Direct = r.IntN(4) > 0, r.IntN(6) == 0, r.IntN(8) == 0, r.IntN(6) > 0, r.IntN(8) > 0
		m.DirectIPv4Only = m.Direct && r.IntN(6) == 0
		m.On = map[string]struct{}{}
		if m.Alive && r.IntN(5) > 0 {
			m.On["eth0"] = struct{}{}
		}
		m.Asymmetric = nil
		if r.IntN(3) == 0 {
			m.Asymmetric = maps.Clone(m.On)
		}
		v.Members.Peers[name] = m
		return view.Touched{Members: map[string]struct{}{name: {}}}
	case s.kind < 20:
		m := v.Members.Peers[name]
		if m.Claims = maps.Clone(m.Claims); m.Claims == nil {
			m.Claims = map[view.VIPID]view.Claim{}
		}
		id := view.IDOf(addr.String())
		c := view.Claim{State: view.ClaimState(r.IntN(4)), Generation: int64(r.IntN(3)), Rank: uint16(r.IntN(3)), Successor: one(r, "n0", "n1", "n2")}
		incremental.Set(m.Claims, id, c, c.State > 0)
		v.Members.Peers[name] = m
		return view.Touched{Claims: map[view.VIPID]struct{}{id: {}}}
	case s.kind == 20:
		why := one[view.Reason](r, "", view.DataPlaneNotReady, view.AddressConflict)
		incremental.Set(v.Unable, addr, why, why != "")
		return view.Touched{Unable: map[netip.Addr]struct{}{addr: {}}}
	}
	switch r.IntN(7) {
	case 6:
		v.NotDirect = one(r, "", "", view.TunnelUnavailable)
		v.DirectIPv4Only = v.NotDirect == "" && r.IntN(3) == 0
		return view.Touched{NotDirect: true}
	case 5:
		v.Members.Returned++
	case 0:
		v.Members.Observer = !v.Members.Observer
	case 4:
		v.Members.Segments = one(r, nil, map[string]struct{}{}, map[string]struct{}{"eth0": {}})
	case 1:
		v.Leaving = r.IntN(3) == 0
	case 2:
		v.Members.Isolated = map[string]struct{}{}
		if r.IntN(3) == 0 {
			v.Members.Isolated["eth0"] = struct{}{}
		}
	case 3:
		link := one(r, "eth0", "eth1", "eth2")
		subnet := netip.MustParsePrefix(one(r, "203.0.113.0/24", "203.0.113.0/30", "2001:db8::/64"))
		incremental.Set(v.Links, link, view.Link{Name: link, Subnets: []netip.Prefix{subnet}}, r.IntN(4) > 0)
		return view.Touched{Links: map[string]struct{}{link: {}}}
	}
	return view.Touched{}
}

func copyOf(m view.Members) view.Members {
	m.Peers = maps.Clone(m.Peers)
	if m.Peers == nil {
		m.Peers = map[string]view.Member{}
	}
	return m
}

func randomService(r *rand.Rand) view.Service {
	svc := view.Service{
		Labels: map[string]string{"app": fmt.Sprint(r.IntN(2))},
		Local:  r.IntN(2) == 0, InternalLocal: r.IntN(2) == 0, NodePorts: r.IntN(2) == 0,
		Affinity: uint32(r.IntN(2) * 60), Created: int64(r.IntN(3)), Families: view.Families(max(0, r.IntN(6)-3)),
		Scheduler: one(r, "", "", "mh"), Forwarding: view.Forwarding(max(0, r.IntN(5)-2)), HealthCheckNodePort: one[uint16](r, 0, 31000),
	}
	seen := map[netip.Addr]bool{}
	for range 1 + r.IntN(3) {
		a := view.Address{IP: netip.AddrFrom4([4]byte{203, 0, 113, byte(r.IntN(5))}), Pool: fmt.Sprint("p", r.IntN(2)), Kind: one(r, view.LoadBalancer, view.LoadBalancer, view.LoadBalancer, view.External, view.ClusterIP, view.Foreign)}
		if r.IntN(20) == 0 {
			a.Pool = ""
		}
		if r.IntN(4) == 0 {
			a.IP = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(1 + r.IntN(3))})
		}
		a.AnnounceOnly = a.Kind == view.LoadBalancer && r.IntN(5) == 0
		if !seen[a.IP] {
			seen[a.IP] = true
			svc.Addresses = append(svc.Addresses, a)
		}
	}
	for range r.IntN(3) {
		svc.Restricted = true
		svc.Sources = append(svc.Sources, netip.MustParsePrefix(
			one(r, "192.0.2.0/24", "192.0.2.0/25", "198.51.100.0/24", "203.0.113.0/24", "0.0.0.0/0", "2001:db8::/32", "2001:db8:0:9::/64")))
	}
	first := r.IntN(3)
	for i := range 1 + r.IntN(2) {
		svc.Ports = append(svc.Ports, view.Port{
			Name: fmt.Sprint(i), Protocol: one(r, ipvs.TCP, ipvs.TCP, ipvs.UDP), Port: uint16(80 + (first+i)%3), NodePort: one(r, 0, uint16(30000+first+i)),
		})
	}
	return svc
}

func randomSlice(r *rand.Rand) view.Slice {
	slice := view.Slice{Ports: []view.Port{
		{Name: "0", Protocol: ipvs.TCP, Port: 8080}, {Name: "1", Protocol: ipvs.TCP, Port: 8081}, {Name: "0", Protocol: ipvs.UDP, Port: 8080},
	}}
	hints := r.IntN(3)
	for range r.IntN(5) {
		e := view.Endpoint{
			Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + r.IntN(6))}), Node: one(r, "n0", "n1", "n2", ""),
			Ready: r.IntN(2) == 0, Serving: r.IntN(3) > 0, Terminating: r.IntN(3) == 0,
		}
		if r.IntN(5) == 0 {
			e.Addr = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 7: 1, 15: byte(1 + r.IntN(3))})
		}
		if r.IntN(10) == 0 {
			e.Addr = netip.AddrFrom4([4]byte{203, 0, 113, byte(r.IntN(5))})
		}
		if hints > 0 && r.IntN(10) > 0 {
			e.ForZones = []string{one(r, "x", "y")}
		}
		if hints > 1 && r.IntN(10) > 0 {
			e.ForNodes = []string{one(r, "n0", "n1", "n2")}
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	return slice
}

// nodeAddress is the address of node n0, n1 or n2.
func nodeAddress(i int, v4 bool) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 7: 9, 15: byte(i + 1)})
}

func randomNode(r *rand.Rand, i int) view.Node {
	n := view.Node{Ready: r.IntN(4) != 0, BeingDeleted: r.IntN(8) == 0, Stopping: r.IntN(8) == 0, NetworkUnavailable: r.IntN(10) == 0, Labels: map[string]string{"zone": fmt.Sprint(r.IntN(2))}}
	if r.IntN(4) > 0 {
		n.Labels[view.LabelZone] = one(r, "x", "y")
	}
	if r.IntN(5) == 0 {
		n.Excluded = r.IntN(3) > 0
	}
	for _, v4 := range []bool{true, false} {
		if r.IntN(5) > 0 {
			n.Addresses = append(n.Addresses, nodeAddress(i, v4))
		}
	}
	n.Reached = append(n.Reached, n.Addresses...)
	if r.IntN(20) == 0 {
		n.Reached = append(n.Reached, netip.AddrFrom4([4]byte{203, 0, 113, byte(r.IntN(5))}))
	}
	if r.IntN(2) == 0 {
		n.PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(64 * i)}), 26)}
	}
	return n
}

func randomAdvertisement(r *rand.Rand) view.Advertisement {
	ad := view.Advertisement{}
	selects := func(key string) []pools.Selector {
		if r.IntN(4) > 0 {
			return nil
		}
		return []pools.Selector{{{Key: key, Operator: pools.In, Values: []string{fmt.Sprint(r.IntN(2))}}}}
	}
	ad.PoolSelectors, ad.Services = selects("tier"), selects("app")
	if r.IntN(2) == 0 {
		ad.Pools = []string{fmt.Sprint("p", r.IntN(2))}
	}
	if r.IntN(2) == 0 {
		ad.Nodes = []pools.Selector{{{Key: "zone", Operator: pools.In, Values: []string{fmt.Sprint(r.IntN(2))}}}}
	}
	if r.IntN(2) == 0 {
		ad.Interfaces = []string{fmt.Sprint("eth", r.IntN(2))}
	}
	return ad
}
