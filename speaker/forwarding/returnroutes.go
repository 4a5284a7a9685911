package forwarding

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// planReturns updates the return routes of the pools on this node.
func (p *Planner) planReturns(v *view.View, touched view.Touched) {
	if !touched.All && !touched.ReturnRoutes && !touched.Pools && !touched.Host && len(touched.Links) == 0 {
		return
	}
	ofPools, routes := returnsOf(v)
	if !slices.Equal(ofPools, p.forwarding.PoolReturns) || !slices.EqualFunc(routes, p.forwarding.ReturnRoutes, ipvs.ReturnRoute.Equal) {
		p.forwarding.PoolReturns, p.forwarding.ReturnRoutes, p.changed.ReturnRoutes = ofPools, routes, true
	}
}

// MissingReturn returns why this node has no return route of a pool and family that has any: the first in order, empty
// if it has all.
func MissingReturn(v *view.View) string {
	ofPools, _ := returnsOf(v)
	for _, r := range ofPools {
		if r.Missing != "" {
			return fmt.Sprintf("no return route of IPAddressPool %s: %s", r.Pool, r.Missing)
		}
	}
	return ""
}

// returnsOf returns the return route of each pool and family that has any, sorted, and the routes themselves: one for
// each gateway, with the addresses of all pools that use it.
func returnsOf(v *view.View) (ofPools []view.PoolReturn, routes []ipvs.ReturnRoute) {
	prefixes := map[pools.ReturnRoute][]netip.Prefix{}
	for _, name := range slices.Sorted(maps.Keys(v.Pools)) {
		pool := v.Pools[name]
		for _, four := range []bool{true, false} {
			of := prefixesOf(pool, four)
			if len(of) == 0 || !slices.ContainsFunc(pool.ReturnRoutes, func(r pools.ReturnRoute) bool { return r.Gateway.Is4() == four }) {
				continue
			}
			one := view.PoolReturn{Pool: name, IPv4: four}
			if route, found := chooseReturn(v, pool.ReturnRoutes, four); found {
				one.Gateway, one.Interface = route.Gateway, route.Interface
				prefixes[route] = append(prefixes[route], of...)
			} else {
				one.Missing = missingReturn(v, pool.ReturnRoutes, four)
			}
			ofPools = append(ofPools, one)
		}
	}
	byGateway := func(a, b pools.ReturnRoute) int {
		return cmp.Or(a.Gateway.Compare(b.Gateway), cmp.Compare(a.Interface, b.Interface))
	}
	for _, route := range slices.SortedFunc(maps.Keys(prefixes), byGateway) {
		routes = append(routes, ipvs.ReturnRoute{
			Gateway: route.Gateway, Interface: route.Interface,
			Subnets:  subnetsOf(v.Links[route.Interface], route.Gateway.Is4()),
			Prefixes: ipvs.Disjoint(prefixes[route]),
		})
	}
	return ofPools, routes
}

func prefixesOf(pool view.Pool, four bool) (out []netip.Prefix) {
	for _, r := range pool.Ranges {
		if r.First.Is4() == four {
			out = append(out, r.Prefixes()...)
		}
	}
	return out
}

func subnetsOf(link view.Link, four bool) (out []netip.Prefix) {
	for _, subnet := range link.Subnets {
		if subnet.Addr().Is4() == four {
			out = append(out, subnet)
		}
	}
	return ipvs.Disjoint(out)
}

// chooseReturn returns the first route whose gateway is on a network of this node, with its interface. This node itself
// is no gateway.
func chooseReturn(v *view.View, all []pools.ReturnRoute, four bool) (pools.ReturnRoute, bool) {
	for _, r := range all {
		if _, own := v.Host[r.Gateway]; own || r.Gateway.Is4() != four {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(v.Links)) {
			on := slices.ContainsFunc(v.Links[name].Subnets, func(p netip.Prefix) bool { return p.Contains(r.Gateway) })
			if (r.Interface == "" || r.Interface == name) && (on || r.Gateway.IsLinkLocalUnicast()) {
				return pools.ReturnRoute{Gateway: r.Gateway, Interface: name}, true
			}
		}
	}
	return pools.ReturnRoute{}, false
}

// missingReturn explains why this node has no return route.
func missingReturn(v *view.View, all []pools.ReturnRoute, four bool) string {
	for _, r := range all {
		if r.Gateway.Is4() != four {
			continue
		}
		if _, own := v.Host[r.Gateway]; own {
			return fmt.Sprintf("the gateway %v is this node", r.Gateway)
		}
		if r.Interface != "" {
			return fmt.Sprintf("interface %s is down, or has no address in the network of the gateway %v", r.Interface, r.Gateway)
		}
		return fmt.Sprintf("no interface that is up has an address in the network of the gateway %v", r.Gateway)
	}
	return ""
}
