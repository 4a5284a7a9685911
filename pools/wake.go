package pools

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// waitKey identifies what a Service may wait for: a free address of a pool and family, one address, one more address
// for a namespace in a pool, or an address shared under a key.
type waitKey struct {
	pool   string
	family Family
	addr   netip.Addr
	ns     string
	key    string
}

func (k waitKey) compare(o waitKey) int {
	return cmp.Or(
		strings.Compare(k.pool, o.pool), cmp.Compare(k.family, o.family), k.addr.Compare(o.addr),
		strings.Compare(k.ns, o.ns), strings.Compare(k.key, o.key),
	)
}

// wakes records which Services wait, what they wait for, and what changed.
type wakes struct {
	waiting    map[waitKey][]*service // the oldest first
	changed    map[waitKey]struct{}   // what is waited for may be available now
	reevaluate map[ServiceKey]struct{}
	promised   map[waitKey]uint64 // room set aside for Services already returned, until assigned, released or declined
	deferred   map[waitKey][]*service
}

func newWakes() wakes {
	return wakes{
		waiting:    map[waitKey][]*service{},
		changed:    map[waitKey]struct{}{},
		reevaluate: map[ServiceKey]struct{}{},
		promised:   map[waitKey]uint64{},
		deferred:   map[waitKey][]*service{},
	}
}

// mark records that the resource of the key changed. It costs nothing if no Service waits for it.
func (w *wakes) mark(k waitKey) {
	if len(w.waiting[k]) > 0 {
		w.changed[k] = struct{}{}
	}
}

// older orders Services that wait for the same key.
func older(s, o *service) int {
	return cmp.Or(s.claim.Created.Compare(o.claim.Created), s.claim.Service.Compare(o.claim.Service))
}

// wait files the Service under the keys. Call it with the same claim as unwait.
func (w *wakes) wait(s *service, keys []waitKey) {
	for _, k := range keys {
		list := w.waiting[k]
		if i, has := slices.BinarySearchFunc(list, s, older); !has {
			w.waiting[k] = slices.Insert(list, i, s)
			s.waits = append(s.waits, k)
		}
	}
}

// unwait removes the Service from every list and gives up the room set aside for it.
func (w *wakes) unwait(s *service) {
	for _, k := range s.waits {
		list := w.waiting[k]
		if i, has := slices.BinarySearchFunc(list, s, older); has {
			list = slices.Delete(list, i, i+1)
		}
		if len(list) == 0 {
			delete(w.waiting, k)
			delete(w.changed, k)
			continue
		}
		w.waiting[k] = list
	}
	s.waits = nil
	delete(w.reevaluate, s.claim.Service)
	w.unpromise(s)
}

func (w *wakes) unpromise(s *service) {
	for _, k := range s.takes {
		if w.promised[k]--; w.promised[k] == 0 {
			delete(w.promised, k)
		}
	}
	s.takes, s.woken, s.deferred = nil, false, false
}

// Decline gives back the room set aside for a Service that Wake returned and that cannot be assigned now, so that the
// next one gets it. Wake does not return the Service again before its next Assign: the caller retries on its own.
func (a *Allocator) Decline(key ServiceKey) {
	s := a.services[key]
	if s == nil || !s.woken {
		return
	}
	takes := s.takes
	a.wakes.unpromise(s)
	s.woken = true // still set: it must not be woken again before its next Assign
	for _, k := range takes {
		a.wakes.mark(k)
	}
}

// Wake returns the Services that need another Assign after the changes since the last call: waiting Services that can
// now be served, and Services whose pool changed. The oldest comes first. A Service is returned once until it is
// assigned or released. If there is less room than waiting Services, only as many are returned as there is room for.
// Call Wake again after each Assign.
func (a *Allocator) Wake(now time.Time) []ServiceKey {
	a.expire(now)
	var woken []*service
	try := func(s *service) {
		if !s.woken && a.worth(s) {
			woken = append(woken, s)
		}
	}
	for _, s := range a.takeMarked() {
		try(s)
	}
	for _, k := range sortedWaits(a.wakes.changed) {
		a.wakeWaiting(k, try)
	}
	slices.SortFunc(woken, older)
	keys := make([]ServiceKey, len(woken))
	for i, s := range woken {
		keys[i] = s.claim.Service
	}
	return keys
}

// takeMarked returns the Services marked for re-evaluation, the oldest first, and clears the marks.
func (a *Allocator) takeMarked() []*service {
	var out []*service
	for key := range a.wakes.reevaluate {
		if s := a.services[key]; s != nil {
			out = append(out, s)
		}
	}
	clear(a.wakes.reevaluate)
	slices.SortFunc(out, older)
	return out
}

func sortedWaits(m map[waitKey]struct{}) []waitKey {
	out := make([]waitKey, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, waitKey.compare)
	return out
}

// wakeWaiting tries the Services that wait for the key until its room is used up. The others wait for the next call.
func (a *Allocator) wakeWaiting(k waitKey, try func(*service)) {
	if k.family != 0 && a.wakes.promised[k] > 0 && !a.room(k) {
		return
	}
	for _, s := range slices.Clone(a.wakes.waiting[k]) {
		if k.family != 0 && !a.room(k) {
			if a.wakes.promised[k] > 0 {
				return
			}
			break // nothing free: the next address freed marks the key again
		}
		try(s)
	}
	delete(a.wakes.changed, k)
	late := a.wakes.deferred[k]
	delete(a.wakes.deferred, k)
	slices.SortFunc(late, older)
	for _, s := range late {
		if s.deferred && a.services[s.claim.Service] == s {
			try(s)
		}
	}
}

// room reports whether the pool has a free address of the family that is not set aside yet.
func (a *Allocator) room(k waitKey) bool {
	p := a.pools[k.pool]
	return p != nil && p.state == PoolReady && p.autoFree(k.family).int64() > int64(a.wakes.promised[k])
}

// worth reports whether another Assign would change the decision, and sets aside the room for it. A Service for which
// all room is already set aside waits for it.
func (a *Allocator) worth(s *service) bool {
	s.deferred = false
	p := a.plan(s)
	same := slices.Equal(p.lease, s.lease) && slices.Equal(p.drains, s.drains)
	sameReason := p.reason == s.reason && p.misfit == s.misfit && p.message == s.message // which may name another
	if same && sameReason {
		a.wakes.wait(s, p.waits)
		return false
	}
	for _, k := range p.takes {
		if !a.room(k) {
			a.wakes.wait(s, []waitKey{k})
			a.wakes.mark(k)
			s.deferred = true
			a.wakes.deferred[k] = append(a.wakes.deferred[k], s)
			return false
		}
	}
	for _, k := range p.takes {
		a.wakes.promised[k]++
	}
	s.takes, s.woken = p.takes, true
	return true
}
