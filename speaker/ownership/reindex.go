package ownership

import (
	"github.com/ironlb/ironlb/speaker/incremental"
)

// reindex records the Nodes, Services, addresses and interfaces that a VirtualIP depends on now.
func (p *Planner) reindex(name string, before, after decided) {
	if before.nodes != nil {
		p.byID.Remove(before.id, name)
	}
	for node := range before.nodes {
		if _, still := after.nodes[node]; !still {
			p.byNode.Remove(node, name)
		}
	}
	for _, key := range before.vip.Services {
		p.bySvc.Remove(key, name)
	}
	for _, addr := range before.vip.Addresses {
		p.byAddr.Remove(addr, name)
	}
	if after.nodes != nil {
		p.byID.Add(after.id, name)
	}
	for node := range after.nodes {
		if _, was := before.nodes[node]; !was {
			p.byNode.Add(node, name)
		}
	}
	for _, key := range after.vip.Services {
		p.bySvc.Add(key, name)
	}
	for _, addr := range after.vip.Addresses {
		p.byAddr.Add(addr, name)
	}
	p.countSegments(before.interfaces, after.interfaces)
}

// countSegments records the interfaces on which members must be received.
func (p *Planner) countSegments(before, after map[string]struct{}) {
	for name := range after {
		p.segments[name]++
	}
	for name := range before {
		p.segments[name]--
	}
	for _, names := range []map[string]struct{}{before, after} {
		for name := range names {
			_, was := p.owners.Segments[name]
			n := p.segments[name]
			incremental.Set(p.owners.Segments, name, struct{}{}, n > 0)
			incremental.Set(p.segments, name, n, n > 0)
			p.changed.Segments = p.changed.Segments || was != (n > 0)
		}
	}
}
