package ownership

import (
	"slices"

	"github.com/ironlb/ironlb/speaker/incremental"
)

// reindex records the Nodes, Services, addresses and interfaces that a VirtualIP depends on now.
func (p *Planner) reindex(name string, before, after decided) {
	if before.nodes != nil && after.nodes == nil {
		p.byID.Remove(before.id, name)
	}
	for node := range before.nodes {
		if _, still := after.nodes[node]; !still {
			p.byNode.Remove(node, name)
		}
	}
	if before.nodes == nil && after.nodes != nil {
		p.byID.Add(after.id, name)
	}
	for node := range after.nodes {
		if _, was := before.nodes[node]; !was {
			p.byNode.Add(node, name)
		}
	}
	change(p.bySvc, before.vip.Services, after.vip.Services, name)
	change(p.byAddr, before.vip.Addresses, after.vip.Addresses, name)
	p.countSegments(before.interfaces, after.interfaces)
}

// change replaces the keys of a VirtualIP in an index.
func change[K comparable](x incremental.Index[K, string], before, after []K, name string) {
	if slices.Equal(before, after) {
		return
	}
	for _, key := range before {
		x.Remove(key, name)
	}
	for _, key := range after {
		x.Add(key, name)
	}
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
