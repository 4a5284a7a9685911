package pools

import (
	"container/heap"
	"net/netip"
	"slices"
	"time"
)

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
