package virtualip

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// unit is the addresses that move together: those of one Service, and of all Services that share one with it.
type unit struct {
	addresses []pools.Address // by address
	services  []pools.ServiceKey
	// local: a Service has policy Local, and only nodes with its endpoints answer.
	local bool
}

// name returns the name of the VirtualIP: the lowest address, in a form that is a valid Kubernetes name.
func (u unit) name() string {
	lowest := u.addresses[0].Addr
	if lowest.Is4() {
		return lowest.String()
	}
	return strings.ReplaceAll(lowest.StringExpanded(), ":", "-")
}

// unitsOf groups the addresses that Services show in their status rightfully. An address only in the ledger is about to
// be written. An address only in the status is about to be cleared, and may belong to another Service already.
func unitsOf(services []*v1.Service, standing func(*v1.Service) []pools.Address) []unit {
	type node struct{ parent *node } // a union-find over Services, joined by their addresses
	var find func(*node) *node
	find = func(n *node) *node {
		if n.parent != nil {
			n.parent = find(n.parent)
			return n.parent
		}
		return n
	}
	bySvc, local := map[pools.ServiceKey]*node{}, map[pools.ServiceKey]bool{}
	byAddr := map[netip.Addr]*node{}
	poolOf := map[netip.Addr]string{}
	for _, svc := range services {
		held := standing(svc)
		if len(held) == 0 {
			continue
		}
		own := &node{}
		bySvc[servicerecord.KeyOf(svc)] = own
		local[servicerecord.KeyOf(svc)] = svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
		for _, a := range held {
			if p, ok := poolOf[a.Addr]; !ok || a.Pool < p {
				poolOf[a.Addr] = a.Pool
			}
			if other := byAddr[a.Addr]; other == nil {
				byAddr[a.Addr] = own
			} else if x, y := find(other), find(own); x != y {
				x.parent = y
			}
		}
	}
	units := map[*node]*unit{}
	for key, n := range bySvc {
		root := find(n)
		if units[root] == nil {
			units[root] = &unit{}
		}
		units[root].services = append(units[root].services, key)
		units[root].local = units[root].local || local[key]
	}
	for a, n := range byAddr {
		u := units[find(n)]
		u.addresses = append(u.addresses, pools.Address{Addr: a, Pool: poolOf[a]})
	}
	out := make([]unit, 0, len(units))
	for _, u := range units {
		slices.SortFunc(u.addresses, pools.Address.Compare)
		slices.SortFunc(u.services, pools.ServiceKey.Compare)
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b unit) int { return a.addresses[0].Addr.Compare(b.addresses[0].Addr) })
	return out
}
