package forwarding

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
)

// claim records the request of a Service, replaces its previous one for the same key, and installs the winner. It
// returns the recorded one, which is the previous one if they are equal.
func (p *Planner) claim(k ipvs.Key, c claim) *virtual {
	claims := p.claims[k]
	if i := slices.IndexFunc(claims, func(d claim) bool { return d.service == c.service }); i >= 0 {
		if claims[i].created == c.created && claims[i].virtual.equal(c.virtual) {
			return claims[i].virtual
		}
		claims = slices.Delete(claims, i, i+1)
	}
	i, _ := slices.BinarySearchFunc(claims, c, claim.compare)
	p.claims[k] = slices.Insert(claims, i, c)
	p.install(k)
	return c.virtual
}

// none is that of no claim.
var none = &virtual{}

// disclaim deletes the request of a Service; the next one wins.
func (p *Planner) disclaim(k ipvs.Key, service pools.ServiceKey) {
	claims := slices.DeleteFunc(p.claims[k], func(c claim) bool { return c.service == service })
	incremental.Set(p.claims, k, claims, len(claims) > 0)
	p.install(k)
}

// install updates the desired state with the oldest claim of a key.
func (p *Planner) install(k ipvs.Key) {
	before, had := p.installed[k]
	if !had {
		before.virtual = none
	}
	after := claim{virtual: none}
	claims := p.claims[k]
	if len(claims) > 0 {
		after = claims[0]
	}
	if had && len(claims) > 0 && before.service == after.service && before.virtual.equal(after.virtual) {
		return // a younger claim came or went
	}
	incremental.Set(p.installed, k, after, len(claims) > 0)
	for _, c := range []claim{before, after} {
		if c.service != (pools.ServiceKey{}) && before.service != after.service {
			p.changed.Services[c.service] = struct{}{}
		}
	}
	p.changed.Keys[k] = struct{}{}
	incremental.Set(p.forwarding.Table, k, after.virtual.Server, len(claims) > 0)
	incremental.Set(p.forwarding.ServicePorts, k, ServicePort{Service: after.service, Port: after.virtual.Port}, len(claims) > 0)
	if keys := incremental.Index[netip.Addr, ipvs.Key](p.forwarding.Keys); len(claims) > 0 {
		keys.Add(k.Addr, k)
	} else {
		keys.Remove(k.Addr, k)
	}
	if after.virtual.ClusterInternal != nil {
		p.forwarding.ClusterInternal[k] = *after.virtual.ClusterInternal
	} else {
		delete(p.forwarding.ClusterInternal, k)
	}
	p.forwarding.SlotsDigest += after.virtual.Digest - before.virtual.Digest
	if after.virtual.Direct != nil {
		p.forwarding.Direct.Virtuals[k] = *after.virtual.Direct
	} else {
		delete(p.forwarding.Direct.Virtuals, k)
	}
	p.count(after.virtual.Elements, before.virtual.Elements)
	p.countLocal(k.Addr, after.virtual.Local, before.virtual.Local)
}
