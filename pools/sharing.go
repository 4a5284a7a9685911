package pools

import (
	"net/netip"
	"slices"
)

// alone reports whether the claiming Service is the only one of its namespace on the address that it holds.
func (a *Allocator) alone(q *query, addr netip.Addr) bool {
	u := a.units[addr]
	return u != nil && !slices.ContainsFunc(u.holders, func(h *service) bool {
		return h != q.self && h.claim.Service.Namespace == q.claim.Service.Namespace
	})
}

// heldByNamespace reports whether the Service's namespace holds the address through another Service.
func (a *Allocator) heldByNamespace(q *query, addr netip.Addr) bool {
	return a.units[addr] != nil && !a.alone(q, addr)
}

// accepted reports whether a pool in use still accepts the claim to the address, together with its sharers.
func (a *Allocator) accepted(u *unit, c *Claim) bool {
	_, drained := a.drainedBy(u.addr)
	if u.pool == nil {
		p := a.pools[u.poolName] // its rules cannot be parsed: keep the holders
		return p != nil && p.state == PoolNotRead && !drained
	}
	if !u.pool.offers(u.addr) || drained || !u.pool.accepts(a, c) {
		return false
	}
	for _, h := range u.holders {
		if holdsAddr(h.lease, u.addr) && !nsMayShare(u.pool, c.Service.Namespace, h.claim.Service.Namespace) {
			return false
		}
	}
	return true
}

// keyGroup contains the addresses in use under one sharing key, and how many of them have each port in use.
type keyGroup struct {
	units []*unit // by address
	ports [2]map[Port]int
	count [2]int
}

// index files the address under the sharing key common to all its holders. unindex is the reverse: call it before the
// holders or their claims change.
func (a *Allocator) index(u *unit) {
	key := u.holders[0].claim.SharingKey
	for _, h := range u.holders {
		if h.claim.SharingKey != key {
			return
		}
	}
	if key == "" {
		return
	}
	g := a.byKey[key]
	if g == nil {
		g = &keyGroup{ports: [2]map[Port]int{{}, {}}}
		a.byKey[key] = g
	}
	u.key = key
	i, _ := slices.BinarySearchFunc(g.units, u.addr, compareUnit)
	g.units = slices.Insert(g.units, i, u)
	g.tally(u, 1)
	a.loosen(u.pool)
}

func (a *Allocator) unindex(u *unit) {
	if u.key == "" {
		return
	}
	g := a.byKey[u.key]
	i, _ := slices.BinarySearchFunc(g.units, u.addr, compareUnit)
	g.units = slices.Delete(g.units, i, i+1)
	g.tally(u, -1)
	if len(g.units) == 0 {
		delete(a.byKey, u.key)
	}
	u.key = ""
}

func compareUnit(u *unit, addr netip.Addr) int { return u.addr.Compare(addr) }

func (g *keyGroup) tally(u *unit, by int) {
	i := slot(FamilyOf(u.addr))
	g.count[i] += by
	taken := map[Port]struct{}{} // a misfit may have the port of another holder: it counts once
	for _, h := range u.holders {
		for _, p := range h.claim.Ports {
			taken[p] = struct{}{}
		}
	}
	for p := range taken {
		if g.ports[i][p] += by; g.ports[i][p] == 0 {
			delete(g.ports[i], p)
		}
	}
}

// join returns the first address of the pool, in listed order, that the claim may share.
func (a *Allocator) join(q *query, p *pool, f Family) *unit {
	g := a.byKey[q.claim.SharingKey]
	if q.claim.SharingKey == "" || g == nil {
		return nil
	}
	for _, port := range q.claim.Ports {
		if g.ports[slot(f)][port] >= g.count[slot(f)] {
			return nil // taken on every address of the key
		}
	}
	var best *unit
	for _, u := range g.units {
		if u.pool != p || FamilyOf(u.addr) != f || !a.assigns(p, u.addr) || best != nil && best.at <= u.at {
			continue
		}
		if !slices.Contains(u.holders, q.self) && a.joinable(u, q.self, q.claim).none() {
			best = u
		}
	}
	return best
}
