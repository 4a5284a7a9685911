package kube

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

// Ours is what IronLB serves on a node where kube-proxy serves the other Services.
type Ours struct {
	// Pools are the addresses of every IPAddressPool, sorted.
	Pools []netip.Prefix
	// Forwarded is set unless kube-proxy forwards all addresses of the pools (ipMode VIP).
	Forwarded bool
	// Full are the other addresses of the Services labelled for IronLB: ClusterIPs, externalIPs, and for NodePorts
	// those of the node; sorted.
	Full []netip.Addr
}

// Endpoints returns the addresses of the node's Pods that are endpoints, sorted, and the Pod CIDRs of all Nodes. ok is
// false until they are listed. It leaves out endpoints that are not ready or terminate, since their interfaces may be
// gone. It also leaves out addresses of Nodes, which belong to the host's network. node must be the same in each call,
// and the slices are immutable.
func (s *Source) Endpoints(node string) (addrs []netip.Addr, podCIDRs []netip.Prefix, ok bool) {
	if !s.each[kindSlice]() || !s.each[kindNode]() {
		return nil, nil, false
	}
	all := s.endpoints.of(s, func() endpoints { return s.endpointsOn(node) }, kindSlice, kindNode)
	return all.addrs, all.podCIDRs, true
}

// endpoints are the result of Endpoints.
type endpoints struct {
	addrs    []netip.Addr
	podCIDRs []netip.Prefix
}

// endpointsOn scans all objects of the informers.
func (s *Source) endpointsOn(node string) (out endpoints) {
	nodes := map[netip.Addr]bool{}
	for _, obj := range s.informers[kindNode].GetStore().List() {
		of := nodeOf(obj.(*corev1.Node), false)
		out.podCIDRs = append(out.podCIDRs, of.PodCIDRs...)
		for _, addr := range of.Reached {
			nodes[addr] = true
		}
	}
	for _, obj := range s.informers[kindSlice].GetStore().List() {
		for _, e := range sliceOf(obj.(*discoveryv1.EndpointSlice)).Endpoints {
			if e.Node == node && e.Ready && !e.Terminating && !nodes[e.Addr] {
				out.addrs = append(out.addrs, e.Addr)
			}
		}
	}
	slices.SortFunc(out.addrs, netip.Addr.Compare)
	out.addrs = slices.Compact(out.addrs)
	return out
}

// Ours returns what IronLB serves. node must be the same in each call, and the slices are immutable.
func (s *Source) Ours(node string) Ours {
	return s.ours.of(s, func() Ours { return s.scan(node) }, kindPool, kindService, kindNode)
}

// scan scans all objects of the informers.
func (s *Source) scan(node string) Ours {
	var out Ours
	for _, obj := range s.informers[kindPool].GetStore().List() {
		for _, text := range obj.(*v1alpha1.IPAddressPool).Spec.Addresses {
			if r, err := pools.ParseRange(text); err == nil { // else the controller reports it
				out.Pools = append(out.Pools, r.Prefixes()...)
			}
		}
	}
	slices.SortFunc(out.Pools, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	announced := false
	var nodePorts [2]bool // of IPv4 and of IPv6
	for _, obj := range s.informers[kindService].GetStore().List() {
		svc := serviceOf(obj.(*corev1.Service), ServiceOptions{}).service
		for _, a := range svc.Addresses {
			switch {
			case a.AnnounceOnly:
				announced = true
			case a.Kind == view.LoadBalancer:
				out.Forwarded = true
			default:
				out.Full = append(out.Full, a.IP)
			}
		}
		if svc.NodePorts && slices.ContainsFunc(svc.Ports, func(p view.Port) bool { return p.NodePort != 0 }) {
			nodePorts[0] = nodePorts[0] || svc.Families != view.OnlyIPv6
			nodePorts[1] = nodePorts[1] || svc.Families != view.OnlyIPv4
		}
	}
	out.Forwarded = out.Forwarded || !announced
	if obj, there, err := s.informers[kindNode].GetStore().GetByKey(node); there && err == nil {
		for _, a := range nodeOf(obj.(*corev1.Node), false).Addresses {
			if a.Is4() && nodePorts[0] || a.Is6() && nodePorts[1] {
				out.Full = append(out.Full, a)
			}
		}
	}
	slices.SortFunc(out.Full, netip.Addr.Compare)
	out.Full = slices.Compact(out.Full)
	return out
}
