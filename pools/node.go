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

// nodeHas takes the address away from its pool, and notes the node.
func (a *Allocator) nodeHas(x netip.Addr, node string) {
	names := a.ofNodes[x]
	i, _ := slices.BinarySearch(names, node)
	a.ofNodes[x] = slices.Insert(names, i, node)
	if sp, ok := a.find(x); ok {
		a.dirty[sp.pool.Name] = struct{}{} // it names the nodes
	}
	switch {
	case len(names) > 0:
	case a.hosts[x] != "":
		a.lookAtHolder(x)
	default:
		a.withhold(x)
	}
}

// withhold takes the address away from its pool.
func (a *Allocator) withhold(x netip.Addr) {
	a.lookAtHolder(x)
	sp, ok := a.find(x)
	if !ok || !sp.pool.offers(x) {
		return
	}
	a.dirty[sp.pool.Name] = struct{}{}
	i := slot(FamilyOf(x))
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
	if sp, ok := a.find(x); ok {
		a.dirty[sp.pool.Name] = struct{}{}
	}
	if len(names) > 0 {
		return
	}
	delete(a.ofNodes, x)
	if a.hosts[x] != "" {
		a.lookAtHolder(x)
		a.wakes.mark(waitKey{addr: x}) // who asks for it may have it
		return
	}
	a.giveUp(x)
}

// giveUp gives an address back to its pool that nobody else has any more.
func (a *Allocator) giveUp(x netip.Addr) {
	a.lookAtHolder(x)
	a.wakes.mark(waitKey{addr: x})
	if u := a.units[x]; u != nil {
		a.wakes.mark(waitKey{key: u.key}) // a holder that drains no more lets others share
	}
	sp, ok := a.find(x)
	if !ok || !sp.pool.offers(x) {
		return
	}
	a.dirty[sp.pool.Name] = struct{}{}
	i := slot(FamilyOf(x))
	delete(sp.pool.ofOthers, x)
	sp.pool.withheld[i]--
	if a.units[x] != nil {
		sp.pool.used[i]++
		return
	}
	a.giveBack(sp.pool, sp.at, x)
}

// withhold counts an address of the pool, which it would give out, as one that others have.
func (p *pool) withhold(x netip.Addr) {
	if p.ofOthers == nil {
		p.ofOthers = map[netip.Addr]struct{}{}
	}
	p.ofOthers[x] = struct{}{}
	p.withheld[slot(FamilyOf(x))]++
}

// withholdIn counts the addresses that others have in the pools that changed. Their counts are new.
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
func (a *Allocator) gives(p *pool, x netip.Addr) bool { return p.offers(x) && !a.othersHave(x) }

func (a *Allocator) nodeAddresses(p *pool) []NodeAddress {
	var out []NodeAddress
	for x := range p.ofOthers {
		if len(a.ofNodes[x]) == 0 {
			continue
		}
		out = append(out, NodeAddress{Addr: x, Nodes: slices.Clone(a.ofNodes[x]), Holders: a.Holders(x)})
	}
	slices.SortFunc(out, func(n, o NodeAddress) int { return n.Addr.Compare(o.Addr) })
	return out
}
