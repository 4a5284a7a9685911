package pools

import (
	"net/netip"
	"slices"
)

// NodeAddress is an address of a node that lies in a pool. No Service gets it: every other node would take it for its own
// and send the node nothing any more.
type NodeAddress struct {
	Addr netip.Addr
	// Nodes that have the address, by name.
	Nodes []string
	// Holders are the Services that had it before, and keep it.
	Holders []ServiceKey
}

func (a *Allocator) setNode(name string, addrs []netip.Addr) {
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

// nodeHas takes the address away from its pool.
func (a *Allocator) nodeHas(x netip.Addr, node string) {
	names := a.ofNodes[x]
	i, _ := slices.BinarySearch(names, node)
	a.ofNodes[x] = slices.Insert(names, i, node)
	sp, ok := a.find(x)
	if ok {
		a.dirty[sp.pool.Name] = struct{}{} // it names the nodes
	}
	if len(names) > 0 {
		return
	}
	a.lookAtHolder(x)
	if !ok || !sp.pool.offers(x) {
		return
	}
	i = slot(FamilyOf(x))
	if a.units[x] != nil {
		sp.pool.used[i]--
	} else if _, resting := a.rests.at[x]; resting {
		a.rests.drop(x)
		sp.pool.resting[i]--
	}
	sp.pool.withhold(x)
}

// nodeLacks gives the address back to its pool when no other node has it.
func (a *Allocator) nodeLacks(x netip.Addr, node string) {
	names := slices.DeleteFunc(a.ofNodes[x], func(n string) bool { return n == node })
	a.ofNodes[x] = names
	sp, ok := a.find(x)
	if ok {
		a.dirty[sp.pool.Name] = struct{}{}
	}
	if len(names) > 0 {
		return
	}
	delete(a.ofNodes, x)
	a.lookAtHolder(x)
	a.wakes.mark(waitKey{addr: x})
	if !ok || !sp.pool.offers(x) {
		return
	}
	i := slot(FamilyOf(x))
	delete(sp.pool.ofNodes, x)
	sp.pool.withheld[i]--
	if u := a.units[x]; u != nil {
		sp.pool.used[i]++
		a.wakes.mark(waitKey{key: u.key}) // a holder that drains no more lets others share
		return
	}
	a.giveBack(sp.pool, sp.at, x)
}

// withhold counts an address of the pool, which it would give out, as a node's.
func (p *pool) withhold(x netip.Addr) {
	if p.ofNodes == nil {
		p.ofNodes = map[netip.Addr]struct{}{}
	}
	p.ofNodes[x] = struct{}{}
	p.withheld[slot(FamilyOf(x))]++
}

// withholdIn counts the nodes' addresses in the pools that changed. Their counts are new.
func (a *Allocator) withholdIn(changed map[string]bool) {
	for x := range a.ofNodes {
		if sp, ok := a.find(x); ok && changed[sp.pool.Name] && sp.pool.offers(x) {
			sp.pool.withhold(x)
		}
	}
}

func (a *Allocator) lookAtHolder(x netip.Addr) {
	if u := a.units[x]; u != nil {
		for _, h := range u.holders {
			a.wakes.look[h.claim.Service] = struct{}{}
		}
	}
}

// nodeOf names a node that has the address, the first by name. Empty: none has.
func (a *Allocator) nodeOf(x netip.Addr) string {
	if names := a.ofNodes[x]; len(names) > 0 {
		return names[0]
	}
	return ""
}

// gives says whether the pool gives the address, which is in it, to anybody.
func (a *Allocator) gives(p *pool, x netip.Addr) bool { return p.offers(x) && len(a.ofNodes[x]) == 0 }

func (a *Allocator) nodeAddresses(p *pool) []NodeAddress {
	var out []NodeAddress
	for x := range p.ofNodes {
		out = append(out, NodeAddress{Addr: x, Nodes: slices.Clone(a.ofNodes[x]), Holders: a.Holders(x)})
	}
	slices.SortFunc(out, func(n, o NodeAddress) int { return n.Addr.Compare(o.Addr) })
	return out
}
