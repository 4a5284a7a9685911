package pools

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Move is a change of the address of one family.
type Move struct {
	From, To netip.Addr
	// Why explains the move to a user.
	Why string
}

// moves returns the changes of the addresses in the Service's status under the plan. Call it before the plan is carried
// out.
func (a *Allocator) moves(s *service, p plan) []Move {
	var out []Move
	for _, to := range p.lease {
		f := FamilyOf(to.Addr)
		i := slices.IndexFunc(s.recorded, func(h Address) bool { return FamilyOf(h.Addr) == f })
		if i < 0 || holdsAddr(s.recorded, to.Addr) || holdsAddr(p.lease, s.recorded[i].Addr) {
			continue
		}
		from := s.recorded[i]
		out = append(out, Move{From: from.Addr, To: to.Addr, Why: a.moveReason(s, from, to)})
	}
	return out
}

// moveReason returns why the Service leaves an address for another one.
func (a *Allocator) moveReason(s *service, from, to Address) string {
	c, u := &s.claim, a.units[from.Addr]
	switch {
	case c.requested(FamilyOf(to.Addr)) == to.Addr:
		return "the Service requests " + to.Addr.String()
	case c.Pool != "" && to.Pool == c.Pool && from.Pool != c.Pool && a.PoolOf(from.Addr) != c.Pool:
		return "the Service requests pool " + c.Pool
	case u != nil && (a.hostAgainst(c, from.Addr) != "" || !a.accepted(u, c)):
		return a.drainCause(&query{claim: c, self: s}, u)
	}
	if u == nil {
		return "it was free by then, and no longer held by the Service"
	}
	var others []string
	for _, h := range u.holders {
		if h != s {
			others = append(others, h.claim.Service.String())
		}
	}
	if len(others) > 0 {
		return fmt.Sprintf("the Service can no longer share it with %s", strings.Join(others, ", "))
	}
	return "the Service may not keep it"
}
