package pools

import (
	"fmt"
	"net/netip"
	"slices"
)

// alone says whether the asking Service is the only one of its namespace on the address it holds.
func (a *Allocator) alone(q *query, addr netip.Addr) bool {
	u := a.units[addr]
	return u != nil && !slices.ContainsFunc(u.holders, func(h *service) bool {
		return h != q.self && h.claim.Service.Namespace == q.claim.Service.Namespace
	})
}

// heldByNamespace says whether the Service's namespace holds the address through another Service.
func (a *Allocator) heldByNamespace(q *query, addr netip.Addr) bool {
	return a.units[addr] != nil && !a.alone(q, addr)
}

// clash says why the claim cannot be on the address together with the others that are on it. Empty: it can.
func clash(u *unit, self *service, c *Claim) string {
	return clashWith(u, self, c, func(*service) bool { return true })
}

// misfit says why the Service, which is on the address, must leave it. Who is a misfit already, or on its way out, leaves
// first, so that one Service's change of key or ports never moves another Service.
func misfit(u *unit, self *service, c *Claim) string {
	return clashWith(u, self, c, func(h *service) bool { return !h.misfit && holdsAddr(h.lease, u.addr) })
}

func clashWith(u *unit, self *service, c *Claim, counts func(*service) bool) string {
	for _, h := range u.holders {
		if h == self || !counts(h) {
			continue
		}
		if why := pairClash(c, &h.claim); why != "" {
			return fmt.Sprintf("%s holds %s and %s", h.claim.Service, u.addr, why)
		}
	}
	return ""
}

func pairClash(c, h *Claim) string {
	switch {
	case c.SharingKey == "" || h.SharingKey == "":
		return "not both have an ironlb.io/sharing-key"
	case c.SharingKey != h.SharingKey:
		return fmt.Sprintf("has another ironlb.io/sharing-key (%q, not %q)", h.SharingKey, c.SharingKey)
	}
	for _, p := range c.Ports {
		if slices.Contains(h.Ports, p) {
			return fmt.Sprintf("has port %s/%d as well", p.Protocol, p.Number)
		}
	}
	if (c.Local || h.Local) && (c.Service.Namespace != h.Service.Namespace || c.Selector != h.Selector || c.Selector == "") {
		return "one of them has externalTrafficPolicy Local while they are in two namespaces, or their selectors differ or are empty"
	}
	return ""
}

// joinable says why the claim may not join the others on an address of the pool. Empty: it may.
func (a *Allocator) joinable(u *unit, self *service, c *Claim) string {
	if why := clash(u, self, c); why != "" {
		return why
	}
	for _, h := range u.holders {
		if h == self {
			continue
		}
		if !nsMayShare(u.home, c.Service.Namespace, h.claim.Service.Namespace) {
			return fmt.Sprintf("%s holds %s in another namespace, and pool %s does not list both in spec.sharing.namespaces", h.claim.Service, u.addr, u.home.Name)
		}
		if !a.admitted(u, &h.claim) {
			return fmt.Sprintf("%s is draining", u.addr)
		}
	}
	return ""
}

func nsMayShare(p *pool, x, y string) bool {
	return x == y || p != nil && slices.Contains(p.SharingNamespaces, x) && slices.Contains(p.SharingNamespaces, y)
}

// admitted says whether some pool in use still admits the claim to the address, beside those who share it.
func (a *Allocator) admitted(u *unit, c *Claim) bool {
	if u.home == nil {
		p := a.pools[u.owner] // nobody knows whom it admitted: as it was
		return p != nil && p.state == PoolNotRead && a.nodeOf(u.addr) == ""
	}
	if !a.gives(u.home, u.addr) || !u.home.admits(a, c) {
		return false
	}
	for _, h := range u.holders {
		if holdsAddr(h.lease, u.addr) && !nsMayShare(u.home, c.Service.Namespace, h.claim.Service.Namespace) {
			return false
		}
	}
	return true
}

// keyGroup is the addresses in use under one sharing key, and how many of them have each port taken.
type keyGroup struct {
	units []*unit // by address
	ports [2]map[Port]int
	count [2]int
}

// index files the address under the sharing key that all its holders have. unindex is the reverse; call it before the
// holders, or what they claim, change.
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
	a.wakes.mark(waitKey{key: key})
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
	taken := map[Port]struct{}{} // a misfit may have a port that another one has: it counts once
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
		if u.home != p || FamilyOf(u.addr) != f || !a.gives(p, u.addr) || best != nil && best.at <= u.at {
			continue
		}
		if !slices.Contains(u.holders, q.self) && a.joinable(u, q.self, q.claim) == "" {
			best = u
		}
	}
	return best
}
