package pools

import (
	"cmp"
	"container/heap"
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

// coolingAddress is the cool-down of a freed address: it lasts for its pool's reuseAfter.
type coolingAddress struct {
	addr  netip.Addr
	freed time.Time
	until time.Time
	by    ServiceKey // freed it and may get it back at once
}

// coolingAddresses are the addresses in cool-down. Queue entries that the map no longer holds are skipped.
type coolingAddresses struct {
	at    map[netip.Addr]coolingAddress
	by    map[ServiceKey][]netip.Addr
	queue minHeap[coolingAddress]
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

func newCoolingAddresses() coolingAddresses {
	return coolingAddresses{
		at: map[netip.Addr]coolingAddress{},
		by: map[ServiceKey][]netip.Addr{},
		queue: minHeap[coolingAddress]{less: func(a, b coolingAddress) bool {
			if !a.until.Equal(b.until) {
				return a.until.Before(b.until)
			}
			return a.addr.Less(b.addr)
		}},
	}
}

func (r *coolingAddresses) put(e coolingAddress) {
	r.end(e.addr)
	r.at[e.addr] = e
	r.by[e.by] = append(r.by[e.by], e.addr)
	heap.Push(&r.queue, e)
}

// end ends the cool-down of the address, if it has one.
func (r *coolingAddresses) end(addr netip.Addr) {
	e, ok := r.at[addr]
	if !ok {
		return
	}
	delete(r.at, addr)
	left := slices.DeleteFunc(r.by[e.by], func(x netip.Addr) bool { return x == addr })
	if len(left) == 0 {
		delete(r.by, e.by)
		return
	}
	r.by[e.by] = left
}

// next returns when the first cool-down ends.
func (r *coolingAddresses) next() (time.Time, bool) {
	for r.queue.Len() > 0 {
		if e := r.queue.items[0]; r.at[e.addr] == e {
			return e.until, true
		}
		heap.Pop(&r.queue)
	}
	return time.Time{}, false
}

// due removes and returns the expired cool-downs.
func (r *coolingAddresses) due(now time.Time) []netip.Addr {
	var out []netip.Addr
	for {
		until, ok := r.next()
		if !ok || until.After(now) {
			return out
		}
		e := heap.Pop(&r.queue).(coolingAddress)
		r.end(e.addr)
		out = append(out, e.addr)
	}
}

// startCoolDown starts the cool-down of a freed address, or returns the address to its pool.
func (a *Allocator) startCoolDown(p *pool, at int, addr netip.Addr, by ServiceKey, now time.Time) {
	if p == nil || !a.assigns(p, addr) {
		return
	}
	if p.ReuseAfter > 0 {
		a.cooling.put(coolingAddress{addr: addr, freed: now, until: now.Add(p.ReuseAfter), by: by})
		p.coolingDown[slot(FamilyOf(addr))]++
		if s := a.services[by]; s != nil && s.reason != Allocated {
			a.mark(s) // it may get it back
		}
		return
	}
	a.returnToFree(p, at, addr)
}

func (a *Allocator) returnToFree(p *pool, at int, addr netip.Addr) {
	p.free[slot(FamilyOf(addr))].release(at, addr)
	a.loosen(p)
}

// endCoolDown ends the cool-down of an address that is being taken.
func (a *Allocator) endCoolDown(addr netip.Addr) {
	if _, ok := a.cooling.at[addr]; !ok {
		return
	}
	a.cooling.end(addr)
	if sp, ok := a.find(addr); ok {
		sp.pool.coolingDown[slot(FamilyOf(addr))]--
	}
}

// expire returns every address whose cool-down is over to its pool.
func (a *Allocator) expire(now time.Time) {
	for _, addr := range a.cooling.due(now) {
		if sp, ok := a.find(addr); ok {
			sp.pool.coolingDown[slot(FamilyOf(addr))]--
			a.returnToFree(sp.pool, sp.at, addr)
		}
	}
}
