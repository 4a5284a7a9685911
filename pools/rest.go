package pools

import (
	"container/heap"
	"net/netip"
	"slices"
	"time"
)

// rest is the cool-down of a freed address: it lasts for its pool's reuseAfter.
type rest struct {
	addr  netip.Addr
	freed time.Time
	until time.Time
	by    ServiceKey // freed it and may get it back at once
}

// rests are the addresses in cool-down. Queue entries that the map no longer holds are skipped.
type rests struct {
	at    map[netip.Addr]rest
	by    map[ServiceKey][]netip.Addr
	queue minHeap[rest]
}

func newRests() rests {
	return rests{
		at: map[netip.Addr]rest{},
		by: map[ServiceKey][]netip.Addr{},
		queue: minHeap[rest]{less: func(a, b rest) bool {
			if !a.until.Equal(b.until) {
				return a.until.Before(b.until)
			}
			return a.addr.Less(b.addr)
		}},
	}
}

func (r *rests) put(e rest) {
	r.drop(e.addr)
	r.at[e.addr] = e
	r.by[e.by] = append(r.by[e.by], e.addr)
	heap.Push(&r.queue, e)
}

// drop ends the cool-down of the address, if it has one.
func (r *rests) drop(addr netip.Addr) {
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
func (r *rests) next() (time.Time, bool) {
	for r.queue.Len() > 0 {
		if e := r.queue.items[0]; r.at[e.addr] == e {
			return e.until, true
		}
		heap.Pop(&r.queue)
	}
	return time.Time{}, false
}

// due removes and returns the expired cool-downs.
func (r *rests) due(now time.Time) []netip.Addr {
	var out []netip.Addr
	for {
		until, ok := r.next()
		if !ok || until.After(now) {
			return out
		}
		e := heap.Pop(&r.queue).(rest)
		r.drop(e.addr)
		out = append(out, e.addr)
	}
}
