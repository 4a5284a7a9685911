package pools

import (
	"net/netip"
	"slices"
)

// NodeAddress is an address of a node that lies in a pool. No Service gets it: every other node would treat it as its
// own and no longer send packets to the node.
type NodeAddress struct {
	Addr netip.Addr
	// Nodes that have the address, by name.
	Nodes []string
	// Holders are the Services that had it before. They keep it.
	Holders []ServiceKey
}

// SetNode sets the addresses of a node. No Service gets one of them. A Service that already has one keeps it: see
// Draining.
func (a *Allocator) SetNode(name string, addrs []netip.Addr) {
	next := slices.Clone(addrs)
	slices.SortFunc(next, netip.Addr.Compare)
	next = slices.Compact(next)
	old := a.nodes[name]
	if len(next) > 0 {
		a.nodes[name] = next
	} else {
		delete(a.nodes, name)
	}
	for _, x := range next {
		if _, had := slices.BinarySearchFunc(old, x, netip.Addr.Compare); !had {
			a.nodeHas(x, name)
		}
	}
	for _, x := range old {
		if _, has := slices.BinarySearchFunc(next, x, netip.Addr.Compare); !has {
			a.nodeLacks(x, name)
		}
	}
}

// DeleteNode removes a node. Its addresses may be assigned.
func (a *Allocator) DeleteNode(name string) {
	a.SetNode(name, nil)
}

// nodeHas takes the address away from its pool, and records the node.
func (a *Allocator) nodeHas(x netip.Addr, node string) {
	names := a.ofNodes[x]
	i, _ := slices.BinarySearch(names, node)
	a.ofNodes[x] = slices.Insert(names, i, node)
	if sp, ok := a.find(x); ok {
		a.dirty[sp.pool.Name] = struct{}{} // its status lists the nodes
	}
	switch {
	case len(names) > 0:
	case a.hosts[x] != "":
		a.reevaluateHolder(x)
	default:
		a.withhold(x)
	}
}

// withhold takes the address away from its pool.
func (a *Allocator) withhold(x netip.Addr) {
	a.reevaluateHolder(x)
	sp, ok := a.find(x)
	if !ok || !sp.pool.offers(x) {
		return
	}
	a.dirty[sp.pool.Name] = struct{}{}
	i := slot(FamilyOf(x))
	if a.units[x] != nil {
		sp.pool.used[i]--
	} else if _, cooling := a.cooling.at[x]; cooling {
		a.cooling.end(x)
		sp.pool.coolingDown[i]--
	}
	sp.pool.withhold(x)
}

// nodeLacks gives the address back to its pool if no other node has it.
func (a *Allocator) nodeLacks(x netip.Addr, node string) {
	names := slices.DeleteFunc(a.ofNodes[x], func(n string) bool { return n == node })
	a.ofNodes[x] = names
	if sp, ok := a.find(x); ok {
		a.dirty[sp.pool.Name] = struct{}{}
	}
	if len(names) > 0 {
		return
	}
	delete(a.ofNodes, x)
	if a.hosts[x] != "" {
		a.reevaluateHolder(x)
		a.wakes.mark(waitKey{addr: x}) // a Service that requests it may get it
		return
	}
	a.endWithholding(x)
}

// endWithholding gives an address back to its pool when no node or foreign host has it any more.
func (a *Allocator) endWithholding(x netip.Addr) {
	a.reevaluateHolder(x)
	a.wakes.mark(waitKey{addr: x})
	if u := a.units[x]; u != nil {
		a.wakes.mark(waitKey{key: u.key}) // a holder that no longer drains lets others share
	}
	sp, ok := a.find(x)
	if !ok || !sp.pool.offers(x) {
		return
	}
	a.dirty[sp.pool.Name] = struct{}{}
	i := slot(FamilyOf(x))
	delete(sp.pool.withheldAddrs, x)
	sp.pool.withheld[i]--
	if a.units[x] != nil {
		sp.pool.used[i]++
		return
	}
	a.returnToFree(sp.pool, sp.at, x)
}

// withhold counts an address that the pool would assign as withheld, because a node or a foreign host has it.
func (p *pool) withhold(x netip.Addr) {
	if p.withheldAddrs == nil {
		p.withheldAddrs = map[netip.Addr]struct{}{}
	}
	p.withheldAddrs[x] = struct{}{}
	p.withheld[slot(FamilyOf(x))]++
}

// withholdIn counts the withheld addresses of the pools that changed. The counters of these pools start at zero.
func (a *Allocator) withholdIn(changed map[string]bool) {
	others := map[netip.Addr]struct{}{}
	for x := range a.ofNodes {
		others[x] = struct{}{}
	}
	for x := range a.hosts {
		others[x] = struct{}{}
	}
	for x := range others {
		if sp, ok := a.find(x); ok && changed[sp.pool.Name] && sp.pool.offers(x) {
			sp.pool.withhold(x)
		}
	}
}

func (a *Allocator) reevaluateHolder(x netip.Addr) {
	if u := a.units[x]; u != nil {
		for _, h := range u.holders {
			a.wakes.reevaluate[h.claim.Service] = struct{}{}
		}
	}
}

// nodeOf returns the first node by name that has the address. Empty: no node has it.
func (a *Allocator) nodeOf(x netip.Addr) string {
	if names := a.ofNodes[x]; len(names) > 0 {
		return names[0]
	}
	return ""
}

// assigns reports whether the pool, which lists the address, assigns it at all.
func (a *Allocator) assigns(p *pool, x netip.Addr) bool { return p.offers(x) && !a.usedElsewhere(x) }

func (a *Allocator) nodeAddresses(p *pool) []NodeAddress {
	var out []NodeAddress
	for x := range p.withheldAddrs {
		if len(a.ofNodes[x]) == 0 {
			continue
		}
		out = append(out, NodeAddress{Addr: x, Nodes: slices.Clone(a.ofNodes[x]), Holders: a.Holders(x)})
	}
	slices.SortFunc(out, func(n, o NodeAddress) int { return n.Addr.Compare(o.Addr) })
	return out
}
