package pools

import (
	"fmt"
	"net/netip"
	"slices"
)

// keyGroup contains the addresses in use under one sharing key, and how many of them have each port in use.
type keyGroup struct {
	units []*unit // by address
	ports [2]map[Port]int
	count [2]int
}

// clash is the reason why a Service cannot share an address with another one. The zero value means no conflict.
type clash struct {
	with ServiceKey
	why  string // names the other Service, the address and the reason
	// apart: the two Services do not request to share an address with one another. If false, they do, and another rule
	// prevents it.
	apart bool
}

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

func (c clash) none() bool { return c.why == "" }

// clashOf returns why the claim cannot be on the address together with its other holders.
func clashOf(u *unit, self *service, c *Claim) clash {
	return clashWith(u, self, c, func(*service) bool { return true })
}

// misfit returns why the Service, which is on the address, no longer agrees with its other holders. Holders that are
// misfits already or release the address do not count. One Service's change of key or ports therefore never makes
// another Service a misfit.
func misfit(u *unit, self *service, c *Claim) clash {
	return clashWith(u, self, c, func(h *service) bool { return !h.misfit && holdsAddr(h.lease, u.addr) })
}

func clashWith(u *unit, self *service, c *Claim, counts func(*service) bool) clash {
	for _, h := range u.holders {
		if h == self || !counts(h) {
			continue
		}
		if why, apart := pairClash(c, &h.claim); why != "" {
			return clash{h.claim.Service, fmt.Sprintf("%s holds %s and %s", h.claim.Service, u.addr, why), apart}
		}
	}
	return clash{}
}

// pairClash returns why h does not share with c, as a clause about h. apart: their sharing keys differ.
func pairClash(c, h *Claim) (why string, apart bool) {
	switch {
	case c.SharingKey == "" && h.SharingKey == "":
		return "neither has an ironlb.io/sharing-key", true
	case h.SharingKey == "":
		return "has no ironlb.io/sharing-key", true
	case c.SharingKey == "":
		return fmt.Sprintf("has ironlb.io/sharing-key %q, and %s has none", h.SharingKey, c.Service), true
	case c.SharingKey != h.SharingKey:
		return fmt.Sprintf("has another ironlb.io/sharing-key (%q, not %q)", h.SharingKey, c.SharingKey), true
	}
	for _, p := range c.Ports {
		if slices.Contains(h.Ports, p) {
			return fmt.Sprintf("has port %s/%d as well", p.Protocol, p.Number), false
		}
	}
	if c.Local || h.Local {
		return localClash(c, h), false
	}
	return "", false
}

// localClash returns why the two may have Pods on different nodes, as a clause about h. The node that announces the
// address must have Pods of each Service with policy Local. Empty: they have the same Pods.
func localClash(c, h *Claim) string {
	what := ""
	switch {
	case c.Service.Namespace != h.Service.Namespace:
		what = "is in another namespace"
	case c.Selector != h.Selector:
		what = "has another spec.selector"
	case c.Selector == "":
		what = "has no spec.selector either"
	default:
		return ""
	}
	who := c.Service.String() + " has"
	if c.Local && h.Local {
		who = "both have"
	} else if h.Local {
		who = h.Service.String() + " has"
	}
	return fmt.Sprintf("%s, while %s externalTrafficPolicy Local", what, who)
}

// joinable returns why the claim may not join the others on an address of the pool.
func (a *Allocator) joinable(u *unit, self *service, c *Claim) clash {
	if found := clashOf(u, self, c); !found.none() {
		return found
	}
	for _, h := range u.holders {
		if h == self {
			continue
		}
		if !nsMayShare(u.pool, c.Service.Namespace, h.claim.Service.Namespace) {
			return clash{with: h.claim.Service, why: fmt.Sprintf(
				"%s holds %s in another namespace, and pool %s does not list both in spec.sharing.namespaces",
				h.claim.Service, u.addr, u.pool.Name)}
		}
		if !a.accepted(u, &h.claim) {
			why := fmt.Sprintf("%s holds %s, which is draining", h.claim.Service, u.addr)
			return clash{with: h.claim.Service, why: why}
		}
	}
	return clash{}
}

// refusedShare returns the first address of the pools, in listed order, that has the claim's sharing key and that the
// claim may not join. It also returns the reason. nil: there is none.
func (a *Allocator) refusedShare(q *query, f Family, from []*pool) (*unit, clash) {
	g := a.byKey[q.claim.SharingKey]
	if q.claim.SharingKey == "" || g == nil {
		return nil, clash{}
	}
	for _, p := range from {
		var best *unit
		var why clash
		for _, u := range g.units {
			if u.pool != p || FamilyOf(u.addr) != f || best != nil && best.at <= u.at {
				continue
			}
			if slices.Contains(u.holders, q.self) {
				continue
			}
			if found := a.joinable(u, q.self, q.claim); !found.none() {
				best, why = u, found
			}
		}
		if best != nil {
			return best, why
		}
	}
	return nil, clash{}
}

func nsMayShare(p *pool, x, y string) bool {
	return x == y || p != nil && slices.Contains(p.SharingNamespaces, x) && slices.Contains(p.SharingNamespaces, y)
}
