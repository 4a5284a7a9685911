package pools

import (
	"container/heap"
	"net/netip"
)

// freeIndex finds the lowest free address of the ranges, in listed order, without enumerating them. Addresses from next
// on have never been examined. Before next, only the addresses in freed can be free. The index holds hints; busy is
// authoritative.
type freeIndex struct {
	ranges []freeRange
	open   minHeap[int] // ranges that may have a free address
	isOpen []bool
}

type freeRange struct {
	Range
	next  netip.Addr // invalid once past the end
	freed minHeap[netip.Addr]
	known map[netip.Addr]struct{} // contents of freed
}

func newFreeIndex(ranges []Range) *freeIndex {
	x := &freeIndex{open: minHeap[int]{less: func(a, b int) bool { return a < b }}}
	for i, r := range ranges {
		x.ranges = append(x.ranges, freeRange{
			Range: r, next: r.First,
			freed: minHeap[netip.Addr]{less: netip.Addr.Less},
			known: map[netip.Addr]struct{}{},
		})
		x.open.items = append(x.open.items, i)
		x.isOpen = append(x.isOpen, true)
	}
	return x
}

// lowest returns the first address that is not busy.
func (x *freeIndex) lowest(busy func(netip.Addr) bool) (netip.Addr, bool) {
	for x.open.Len() > 0 {
		i := x.open.items[0]
		if addr, ok := x.ranges[i].lowest(busy); ok {
			return addr, true
		}
		heap.Pop(&x.open)
		x.isOpen[i] = false
	}
	return netip.Addr{}, false
}

func (r *freeRange) lowest(busy func(netip.Addr) bool) (netip.Addr, bool) {
	for r.freed.Len() > 0 {
		if a := r.freed.items[0]; !busy(a) {
			return a, true
		}
		delete(r.known, heap.Pop(&r.freed).(netip.Addr))
	}
	for r.next.IsValid() && busy(r.next) {
		if r.next == r.Last {
			r.next = netip.Addr{}
			break
		}
		r.next = r.next.Next()
	}
	return r.next, r.next.IsValid()
}

// release records that an address of range i is no longer busy.
func (x *freeIndex) release(i int, addr netip.Addr) {
	r := &x.ranges[i]
	if !r.next.IsValid() || addr.Less(r.next) {
		if _, has := r.known[addr]; !has {
			r.known[addr] = struct{}{}
			heap.Push(&r.freed, addr)
		}
	}
	if !x.isOpen[i] {
		x.isOpen[i] = true
		heap.Push(&x.open, i)
	}
}

// minHeap is a heap.Interface, smallest first.
type minHeap[T any] struct {
	items []T
	less  func(a, b T) bool
}

func (h *minHeap[T]) Len() int           { return len(h.items) }
func (h *minHeap[T]) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }
func (h *minHeap[T]) Swap(i, j int)      { h.items[i], h.items[j] = h.items[j], h.items[i] }
func (h *minHeap[T]) Push(v any)         { h.items = append(h.items, v.(T)) }
func (h *minHeap[T]) Pop() any {
	last := len(h.items) - 1
	v := h.items[last]
	h.items = h.items[:last]
	return v
}
