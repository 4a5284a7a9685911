package warnings

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// guard determines which addresses no Service may have, by the rules of the speakers (pools.Guard), for Events and
// conditions.
type guard struct {
	settings *Settings
	allowed  []netip.Prefix // the CIDRs of external IPs
	// poolOf returns the pool that has an address, empty for none.
	poolOf func(netip.Addr) string
	// withhold takes addresses out of allocation.
	withhold func(pools.Refusal, []netip.Addr)
	// changed is called after every change, endpointsChanged with a Service whose endpoints, other than Pods, changed.
	// They must not block.
	changed          func()
	endpointsChanged func(pools.ServiceKey)
	// fed are the sync functions of what is withheld.
	fed []cache.InformerSynced

	mu        sync.Mutex
	rules     *pools.Guard
	endpoints *watch.EndpointSlices
}

func newGuard(settings *Settings) *guard {
	allowed := prefixes(settings.ExternalIPCIDRs)
	return &guard{
		settings: settings, allowed: allowed, poolOf: func(netip.Addr) string { return "" },
		withhold: func(pools.Refusal, []netip.Addr) {}, changed: func() {}, rules: pools.NewGuard(allowed),
		endpointsChanged: func(pools.ServiceKey) {},
	}
}

// watch feeds the guard with the addresses that the cluster depends on. It returns the sync functions of the informers.
func (g *guard) watch(
	ctx context.Context, log *slog.Logger, core informers.SharedInformerFactory, kinds watch.Kinds, endpoints *watch.EndpointSlices,
) (synced []cache.InformerSynced, err error) {
	reg, err := core.Core().V1().Nodes().Informer().AddEventHandler(g.handler())
	if err != nil {
		return nil, fmt.Errorf("watching Nodes: %w", err)
	}
	synced = append(synced, reg.HasSynced)
	networks := core.Networking().V1().ServiceCIDRs().Informer()
	if reg, err = networks.AddEventHandler(g.handler()); err != nil {
		return nil, fmt.Errorf("watching ServiceCIDRs: %w", err)
	}
	is, err := watch.Optional(log, "ServiceCIDRs", networks, reg, &atomic.Bool{})
	if err != nil {
		return nil, err
	}
	synced = append(synced, is)
	known, err := g.watchEndpoints(endpoints)
	if err != nil {
		return nil, err
	}
	synced = append(synced, known)
	own, err := kinds.WatchAll(ctx, g.handler(), &v1alpha1.BGPPeer{}, &v1alpha1.SpeakerStatus{})
	g.fed = append(own, synced[0]) // IronLB's kinds and Nodes
	return append(synced, own...), err
}

// handler feeds the addresses of an object to the guard.
func (g *guard) handler() cache.ResourceEventHandler {
	set := func(o any, exists bool) {
		g.mu.Lock()
		changed := g.record(o, exists)
		g.mu.Unlock()
		if changed {
			g.changed()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { set(o, true) },
		UpdateFunc: func(_, o any) { set(o, true) },
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			set(o, false)
		},
	}
}

// record records the addresses of an object, none if it was deleted, and reports whether they changed.
func (g *guard) record(o any, exists bool) bool {
	switch o := o.(type) {
	case *v1.Node:
		var addrs []netip.Addr
		var cidrs []string
		if exists {
			addrs, cidrs = watch.NodeAddresses(o), append(slices.Clone(o.Spec.PodCIDRs), o.Spec.PodCIDR)
		}
		a := g.set(pools.RuleNode, o.Name, addrs)
		b := g.rules.Set(pools.Refusal{Rule: pools.RulePodNetwork, Of: o.Name}, prefixes(cidrs)...)
		return a || b
	case *networkingv1.ServiceCIDR:
		var cidrs []string
		if exists {
			cidrs = o.Spec.CIDRs
		}
		return g.rules.Set(pools.Refusal{Rule: pools.RuleServiceNetwork, Of: o.Name}, prefixes(cidrs)...)
	case *v1alpha1.BGPPeer:
		var addrs []netip.Addr
		if exists {
			addrs = watch.Addresses([]string{o.Spec.PeerAddress})
		}
		return g.set(pools.RulePeer, o.Name, addrs)
	case *v1alpha1.SpeakerStatus:
		var addrs, ends []netip.Addr
		if exists {
			addrs = watch.Addresses(o.Status.Gateways)
			for _, in := range o.Status.Interfaces {
				ends = append(ends, endsOf(prefixes(in.Subnets))...)
			}
		}
		g.withhold(pools.Refusal{Rule: pools.RuleSubnet, Of: o.Name}, ends)
		return g.set(pools.RuleGateway, o.Name, addrs)
	}
	return false
}

// set sets the addresses of an object: no Service may have or get them.
func (g *guard) set(rule pools.Rule, of string, addrs []netip.Addr) bool {
	r := pools.Refusal{Rule: rule, Of: of}
	g.withhold(r, addrs)
	return g.rules.SetAddresses(r, addrs...)
}

// endsOf returns the addresses of subnets that no host may have: network and broadcast address of IPv4, and the
// subnet-router anycast address of IPv6. Point-to-point links have none (RFC 3021, RFC 6164).
func endsOf(subnets []netip.Prefix) (ends []netip.Addr) {
	for _, p := range subnets {
		if p.Addr().BitLen()-p.Bits() < 2 {
			continue
		}
		ends = append(ends, p.Masked().Addr())
		if p.Addr().Is4() {
			ends = append(ends, pools.LastOf(p))
		}
	}
	return ends
}

// watchEndpoints feeds the guard with endpoints: where external IPs are allowed, with all that the speakers use.
func (g *guard) watchEndpoints(endpoints *watch.EndpointSlices) (cache.InformerSynced, error) {
	if len(g.allowed) > 0 {
		endpoints.KeepAddresses()
	}
	g.endpoints = endpoints
	changed := func(o any) {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			return
		}
		if slice.Namespace == "default" && slice.Name == "kubernetes" { // the one that the API server maintains
			g.recordAPIServers()
		}
		addrs := watch.Addresses(watch.AddressesIn(slice))
		if !watch.OfPods(slice) {
			g.endpointsChanged(watch.ServiceOf(slice))
		}
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool {
			return slices.ContainsFunc(g.allowed, func(p netip.Prefix) bool { return p.Contains(a) })
		}) {
			g.changed()
		}
	}
	_, synced, err := endpoints.Watch(cache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(before, after any) {
			was, is := before.(*discoveryv1.EndpointSlice), after.(*discoveryv1.EndpointSlice)
			if watch.ServiceOf(was) != watch.ServiceOf(is) || watch.OfPods(was) != watch.OfPods(is) ||
				!slices.Equal(watch.AddressesIn(was), watch.AddressesIn(is)) {
				changed(before)
				changed(after)
			}
		},
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			changed(o)
		},
	})
	return synced, err
}

// recordAPIServers records the addresses of the API server from its own EndpointSlice.
func (g *guard) recordAPIServers() {
	var at []netip.Addr
	if o, there, err := g.endpoints.Informer().GetIndexer().GetByKey("default/kubernetes"); there && err == nil {
		at = watch.Addresses(watch.AddressesIn(o.(*discoveryv1.EndpointSlice)))
	}
	g.mu.Lock()
	changed := g.rules.SetAddresses(pools.Refusal{Rule: pools.RuleAPIServer}, at...)
	g.mu.Unlock()
	if changed {
		g.changed()
	}
}

// refusedAddress is an address that no Service may have, with the field of the Service that contains it.
type refusedAddress struct {
	field string
	addr  netip.Addr
	why   pools.Refusal
}

// inStatus is the field of an assigned address.
const inStatus = "status.loadBalancer"

// refused returns the refused addresses of a Service: external IPs if the speakers serve those, and LoadBalancer
// addresses if IronLB assigned them.
func (g *guard) refused(svc *v1.Service, ours bool) []refusedAddress {
	var out []refusedAddress
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settings.proxies(svc) {
		for i, text := range svc.Spec.ExternalIPs {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				continue // the API server rejects it
			}
			if why, bad := g.external(addr.Unmap()); bad {
				out = append(out, refusedAddress{fmt.Sprintf("spec.externalIPs[%d]", i), addr.Unmap(), why})
			}
		}
	}
	if !ours {
		return out
	}
	for _, addr := range servicerecord.IngressOf(svc) {
		if why, bad := g.rules.Assigned(addr, "any"); bad {
			out = append(out, refusedAddress{inStatus, addr, why})
		}
	}
	return out
}

func (g *guard) external(addr netip.Addr) (pools.Refusal, bool) {
	why, bad := g.rules.External(addr, g.poolOf(addr), false)
	if bad && why.Rule == pools.RuleNode { // the node serves it as it is
		return g.rules.External(addr, "", true)
	}
	if bad {
		return why, bad
	}
	of := g.endpoints.At(addr)
	if len(of) == 0 {
		return pools.Refusal{}, false
	}
	return pools.Refusal{Rule: pools.RuleEndpoint, Of: slices.MinFunc(of, pools.ServiceKey.Compare).String()}, true
}

// warning returns the text for the author of the Service.
func (r refusedAddress) warning() warning {
	fix := "Choose another one"
	switch {
	case r.why.Rule == pools.RuleNotAllowed:
		fix = "Remove it, or ask the operator to allow it"
	case r.field == "status.loadBalancer":
		fix = "Ask the operator to remove it from the IPAddressPool"
	}
	return warning{addressRefused, fmt.Sprintf("%s: %s is not used by any node: it %v (rule %s). %s", r.field, r.addr, r.why, r.why.Rule, fix)}
}

func prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}
