package pools

import (
	"container/heap"
	"net/netip"
	"slices"
	"time"
)

// pool is a Pool with the indexes that find its free addresses.
type pool struct {
	Pool
	state         PoolState
	loosened      bool // a Service may get what it could not get before
	overlaps      string
	free          [2]*freeIndex // by slot
	capacity      [2]u128       // addresses it assigns
	used          [2]uint64     // of those, in use by a Service
	coolingDown   [2]uint64     // of those, in cool-down
	withheld      [2]uint64     // of those, addresses of nodes and foreign hosts, in use or not; they count in nothing else
	withheldAddrs map[netip.Addr]struct{}
}

// span is one range of a pool in use.
type span struct {
	Range
	pool *pool
	at   int // index among the pool's ranges of the family
}

// service is the state of a Service that holds or waits for an address.
type service struct {
	claim     Claim
	lease     []Address
	releasing []Address // given up, but still in its status as of the last write
	reason    Reason
	message   string
	drains    []string // pools whose address it keeps without being accepted
	waits
	marked bool // in Allocator.marked
	misfit bool // it no longer agrees with its sharers, and no other address is available
	// reallocated: its Reallocate gave up an address, and the completion is not written yet
	reallocated bool
	restored    bool // its status shows nothing, and it held its addresses before
	// recorded is the lease in the Service's status: Held when it is new, then the last lease that was settled.
	recorded []Address
}

// unit is an address in use.
type unit struct {
	addr     netip.Addr
	poolName string // the pool it is counted in
	pool     *pool  // the pool in use that contains it, if any
	at       int    // range of pool
	holders  []*service
	key      string // sharing key, when all holders have the same one
}

// ledger counts the addresses held from one pool.
type ledger struct {
	units    map[netip.Addr]*unit
	assigned [2]int64
	byNS     map[string]int64 // addresses that a namespace holds
	draining map[ServiceKey]struct{}
}

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

// minHeap is a heap.Interface, smallest first.
type minHeap[T any] struct {
	items []T
	less  func(a, b T) bool
}

// slot is the index of a family in arrays by family.
func slot(f Family) int {
	if f == IPv4 {
		return 0
	}
	return 1
}

func (a *Allocator) ledger(name string) *ledger {
	l := a.ledgers[name]
	if l == nil {
		l = &ledger{units: map[netip.Addr]*unit{}, byNS: map[string]int64{}, draining: map[ServiceKey]struct{}{}}
		a.ledgers[name] = l
	}
	return l
}

// find returns the range in use that contains the address.
func (a *Allocator) find(addr netip.Addr) (span, bool) { return findSpan(a.spans, addr) }

// findSpan returns the range that contains the address. spans is sorted and disjoint.
func findSpan(spans []span, addr netip.Addr) (span, bool) {
	i, exact := slices.BinarySearchFunc(spans, addr, func(s span, x netip.Addr) int { return s.First.Compare(x) })
	if !exact {
		i--
	}
	if i < 0 || !spans[i].Contains(addr) {
		return span{}, false
	}
	return spans[i], true
}

// offers reports whether the pool's own rules allow the address, which must lie in the pool.
func (p *pool) offers(addr netip.Addr) bool { return !p.AvoidBuggyIPs || !buggy(addr) }

// buggy reports whether the address ends in .0 or .255, which some routers and clients drop.
func buggy(addr netip.Addr) bool {
	if !addr.Is4() {
		return false
	}
	last := addr.As4()[3]
	return last == 0 || last == 255
}

func (p *pool) accepts(a *Allocator, c *Claim) bool {
	labels, known := a.nsLabel[c.Service.Namespace]
	return p.Allocation.accepts(c, labels, known)
}

// autoFree returns the number of addresses available for auto-assignment.
func (p *pool) autoFree(f Family) u128 {
	i := slot(f)
	return p.capacity[i].sub(u128{0, p.used[i] + p.coolingDown[i] + p.withheld[i]})
}

// hold puts the Service on the address.
func (a *Allocator) hold(s *service, want Address) {
	u := a.units[want.Addr]
	if u == nil {
		a.endCoolDown(want.Addr)
		u = &unit{addr: want.Addr, poolName: want.Pool}
		if sp, ok := a.find(want.Addr); ok {
			u.pool, u.at, u.poolName = sp.pool, sp.at, sp.pool.Name
		}
		a.units[want.Addr] = u
		a.addToLedger(u)
	}
	a.countNS(u, s.claim.Service.Namespace, 1)
	i, _ := slices.BinarySearchFunc(u.holders, s.claim.Service, func(h *service, k ServiceKey) int { return h.claim.Service.Compare(k) })
	u.holders = slices.Insert(u.holders, i, s)
}

// unhold takes the Service off the address and reports whether it was the last holder.
func (a *Allocator) unhold(s *service, addr netip.Addr, now time.Time) bool {
	u := a.units[addr]
	u.holders = slices.DeleteFunc(u.holders, func(h *service) bool { return h == s })
	a.countNS(u, s.claim.Service.Namespace, -1)
	if len(u.holders) > 0 {
		return false
	}
	a.removeFromLedger(u)
	delete(a.units, addr)
	a.startCoolDown(u.pool, u.at, addr, s.claim.Service, now)
	return true
}

// addToLedger counts the address in its pool; removeFromLedger is the reverse.
func (a *Allocator) addToLedger(u *unit) {
	l := a.ledger(u.poolName)
	l.units[u.addr] = u
	l.assigned[slot(FamilyOf(u.addr))]++
	if u.pool != nil && a.assigns(u.pool, u.addr) {
		u.pool.used[slot(FamilyOf(u.addr))]++
	}
	if u.pool == nil {
		a.withoutPool[u.addr] = u
	}
	a.dirty[u.poolName] = struct{}{}
}

func (a *Allocator) removeFromLedger(u *unit) {
	l := a.ledger(u.poolName)
	delete(l.units, u.addr)
	delete(a.withoutPool, u.addr)
	l.assigned[slot(FamilyOf(u.addr))]--
	if u.pool != nil && a.assigns(u.pool, u.addr) {
		u.pool.used[slot(FamilyOf(u.addr))]--
	}
	a.dirty[u.poolName] = struct{}{}
	a.pruneLedger(u.poolName)
}

// pruneLedger deletes the ledger of a removed pool when no address of it is held any more.
func (a *Allocator) pruneLedger(name string) {
	if l := a.ledgers[name]; a.pools[name] == nil && len(l.units)+len(l.byNS)+len(l.draining) == 0 {
		delete(a.ledgers, name)
	}
}

// countNS counts the address for the namespace unless another holder is in it. u.holders must not contain the holder
// itself.
func (a *Allocator) countNS(u *unit, ns string, by int64) {
	if by < 0 {
		a.loosen(a.pools[u.poolName])
	}
	if slices.ContainsFunc(u.holders, func(h *service) bool { return h.claim.Service.Namespace == ns }) {
		return
	}
	l := a.ledger(u.poolName)
	if l.byNS[ns] += by; l.byNS[ns] == 0 {
		delete(l.byNS, ns)
	}
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

func (h *minHeap[T]) Len() int { return len(h.items) }

func (h *minHeap[T]) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }

func (h *minHeap[T]) Swap(i, j int) { h.items[i], h.items[j] = h.items[j], h.items[i] }

func (h *minHeap[T]) Push(v any) { h.items = append(h.items, v.(T)) }

func (h *minHeap[T]) Pop() any {
	last := len(h.items) - 1
	v := h.items[last]
	h.items = h.items[:last]
	return v
}
