package pools

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// CoolDown is a freed address that no other Service gets before its pool's reuseAfter has passed.
type CoolDown struct {
	Addr  netip.Addr
	Freed time.Time
	By    ServiceKey // freed it and may get it back at once; the zero value: no Service may
}

// coolDowns returns the cool-downs of the pool, the latest first, then by address.
func (a *Allocator) coolDowns(p *pool) []CoolDown {
	if p.coolingDown == [2]uint64{} {
		return nil
	}
	var out []CoolDown
	for addr, e := range a.cooling.at {
		if sp, ok := a.find(addr); ok && sp.pool == p {
			out = append(out, CoolDown{Addr: addr, Freed: e.freed, By: e.by})
		}
	}
	slices.SortFunc(out, func(c, o CoolDown) int { return cmp.Or(o.Freed.Compare(c.Freed), c.Addr.Compare(o.Addr)) })
	return out
}

// Restore continues the cool-downs of an earlier Allocator, as listed in its PoolStatus. Call it after the first
// SetPools. A cool-down is ignored if it is over, if a Service holds the address, or if the pool no longer has a
// reuseAfter. A cool-down that begins later than now (the clocks of two leaders differ) begins now.
func (a *Allocator) Restore(all []CoolDown, now time.Time) {
	for _, c := range all {
		sp, ok := a.find(c.Addr)
		if !ok || a.units[c.Addr] != nil || sp.pool.ReuseAfter <= 0 || !a.assigns(sp.pool, c.Addr) {
			continue
		}
		if c.Freed.After(now) {
			c.Freed = now
		}
		until := c.Freed.Add(sp.pool.ReuseAfter)
		if _, known := a.cooling.at[c.Addr]; known || !until.After(now) {
			continue
		}
		a.cooling.put(coolingAddress{addr: c.Addr, freed: c.Freed, until: until, by: c.By})
		sp.pool.coolingDown[slot(FamilyOf(c.Addr))]++
		a.dirty[sp.pool.Name] = struct{}{}
	}
}
