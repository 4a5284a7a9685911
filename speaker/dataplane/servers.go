package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

const (
	// listEvery applies to lists that would find nothing else than an error of this program.
	listEvery = 10 * time.Minute
	// applyMost is the number of virtual servers that are changed at once: the memory that a change takes does not grow
	// with the number of Services.
	applyMost = 500
)

// servers are the owned virtual servers of a driver, as last listed and changed since. The zero value, without a
// driver, has none and is never changed.
type servers struct {
	driver VirtualServers
	// have is nil until the first list. keys are its keys by address, reals the number of its real servers, ipv6 that of
	// its virtual servers of IPv6.
	have        ipvs.Table
	keys        map[netip.Addr]map[ipvs.Key]struct{}
	reals, ipv6 int
	// listed is when have was last listed, and rested when it may be listed again for a difference of single virtual
	// servers. stale is set if have may differ from the driver's state: one was found, or an own change failed.
	listed, rested time.Time
	stale          bool
	// generation is what the driver's Watcher returned last.
	generation uint64
	// count is what the driver's Verifier returned last, changed by what was added and deleted since. grew is set if have
	// has an address that it did not have when it was last listed.
	count int
	grew  bool
	rota  rota
}

// observe brings have up to date and reports whether it was wrong. owned reports whether a virtual server is owned.
func (t *servers) observe(owned func(ipvs.Key) bool) (differs bool, err error) {
	if t.driver == nil {
		return false, nil
	}
	if current, err := t.current(owned); err != nil || current {
		return false, err
	}
	return t.list(owned)
}

// current reports whether have needs no list. Without a Watcher or a Verifier it always does.
func (t *servers) current(owned func(ipvs.Key) bool) (bool, error) {
	if w, ok := t.driver.(Watcher); ok {
		generation, watched, err := w.Generation()
		if err != nil {
			return false, err
		}
		if watched {
			unchanged := !t.stale && generation == t.generation
			t.generation = generation
			return unchanged && t.listedWithin(listEvery), nil
		}
	}
	if v, ok := t.driver.(Verifier); ok {
		return t.verified(v, owned)
	}
	return false, nil
}

// listedWithin reports whether have was listed less than a time ago.
func (t *servers) listedWithin(every time.Duration) bool {
	return t.have != nil && time.Since(t.listed) < every
}

// list lists the owned virtual servers and reports whether have was different.
func (t *servers) list(owned func(ipvs.Key) bool) (differs bool, err error) {
	start := time.Now()
	virtuals, err := t.driver.Virtuals()
	if err != nil {
		return false, err
	}
	ours := map[netip.Addr]struct{}{}
	for key := range virtuals {
		if owned(key) {
			ours[key.Addr] = struct{}{}
		}
	}
	table, err := t.driver.ListOf(ours)
	if err != nil {
		return false, err
	}
	differs = t.set(table, owned)
	t.listed, t.stale, t.grew = time.Now(), false, false
	t.rested = t.listed.Add(min(verifyFactor*t.listed.Sub(start), verifyWithin))
	t.rota.at = t.listed
	return differs, nil
}

// same reports whether the owned virtual servers are as recorded.
func (t *servers) same(virtuals map[ipvs.Key]ipvs.Settings, owned func(ipvs.Key) bool) bool {
	found := 0
	for key, settings := range virtuals {
		if !owned(key) {
			continue
		}
		vs, known := t.have[key]
		if !known || vs.Settings != settings {
			return false
		}
		found++
	}
	return found == len(t.have)
}

// set replaces have by the owned part of a table and reports whether they differ.
func (t *servers) set(table ipvs.Table, owned func(ipvs.Key) bool) (differs bool) {
	maps.DeleteFunc(table, func(key ipvs.Key, _ ipvs.VirtualServer) bool { return !owned(key) })
	if t.have != nil && t.have.Equal(table) {
		return false
	}
	t.have, t.keys, t.reals, t.ipv6 = table, map[netip.Addr]map[ipvs.Key]struct{}{}, 0, 0
	for key := range table {
		t.reindex(key, 0)
	}
	t.rota = rota{}
	return true
}

// relist brings have up to date for some addresses.
func (t *servers) relist(addrs map[netip.Addr]struct{}, owned func(ipvs.Key) bool) error {
	if t.driver == nil || len(addrs) == 0 {
		return nil
	}
	table, err := t.driver.ListOf(addrs)
	if err != nil {
		return err
	}
	maps.DeleteFunc(table, func(key ipvs.Key, _ ipvs.VirtualServer) bool { return !owned(key) })
	for addr := range addrs {
		for key := range t.keys[addr] {
			if !has(table, key) {
				reals := len(t.have[key].RealServers)
				delete(t.have, key)
				t.reindex(key, reals)
			}
		}
	}
	for key, vs := range table {
		reals := len(t.have[key].RealServers)
		t.have[key] = vs
		t.reindex(key, reals)
	}
	return nil
}

// reindex updates the index and the numbers after a change of one virtual server. before is its previous number of real
// servers.
func (t *servers) reindex(key ipvs.Key, before int) {
	vs, exists := t.have[key]
	t.reals += len(vs.RealServers) - before
	_, existed := t.keys[key.Addr][key]
	switch {
	case exists == existed:
		return
	case exists && t.keys[key.Addr] == nil:
		t.keys[key.Addr], t.grew = map[ipvs.Key]struct{}{key: {}}, true
	case exists:
		t.keys[key.Addr][key] = struct{}{}
	default:
		delete(t.keys[key.Addr], key)
		if len(t.keys[key.Addr]) == 0 {
			delete(t.keys, key.Addr)
		}
	}
	if exists {
		t.rota.add(key)
	}
	switch {
	case key.Addr.Is4():
	case exists:
		t.ipv6++
	default:
		t.ipv6--
	}
}

// apply changes some virtual servers to the wanted state; a key that is absent from want is deleted. It returns the
// completed operations and the virtual servers of the failed ones.
func (t *servers) apply(keys []ipvs.Key, wanted ipvs.Table) (done []ipvs.Op, failed map[ipvs.Key]struct{}, err error) {
	have, want := make(ipvs.Table, len(keys)), make(ipvs.Table, len(keys))
	for _, key := range keys {
		if vs, ok := t.have[key]; ok {
			have[key] = vs
		}
		if vs, ok := wanted[key]; ok {
			want[key] = vs
		}
	}
	ops := ipvs.Diff(have, want)
	if len(ops) == 0 {
		return nil, nil, nil
	}
	failed = map[ipvs.Key]struct{}{}
	done, err = t.driver.Apply(ops)
	t.stale = t.stale || err != nil
	for _, op := range done {
		before := len(t.have[op.Virtual].RealServers)
		if recordErr := t.have.Apply(op); recordErr != nil { // the driver had another state than recorded
			err = errors.Join(err, fmt.Errorf("record completed operations: %w", recordErr))
			failed[op.Virtual] = struct{}{}
		}
		t.reindex(op.Virtual, before)
		switch {
		case !op.Virtual.Addr.Is4() || t.count < 0:
		case op.Action == ipvs.AddVirtual:
			t.count++
		case op.Action == ipvs.DeleteVirtual:
			t.count--
		}
	}
	for i, n := 0, 0; i < len(ops); i++ {
		if n < len(done) && done[n] == ops[i] {
			n++
			continue
		}
		failed[ops[i].Virtual] = struct{}{}
	}
	return done, failed, err
}

const (
	// verifyWithin is the time in which each virtual server of a Verifier is compared once. A round in which many are
	// added takes longer; an edit is restored within ten seconds.
	verifyWithin = 8 * time.Second
	// verifyFactor bounds the cost, of the comparisons and of the lists after a difference, each to 1 % of a core. It has
	// precedence over the others, except that at least one is compared.
	verifyFactor = 100
	// verifyLeast is how many are compared each time if there are as many.
	verifyLeast = 50
	// listUncountedEvery is the interval of lists if the driver does not count all virtual servers, since it has some of
	// IPv6: no number reveals one that another program adds to an address of IronLB.
	listUncountedEvery = time.Minute
)

// verified reports whether the driver has the recorded number of virtual servers, and those compared now. Their number
// reveals at once if some were deleted or added, also by a flush.
//
// An address that is new in have may have virtual servers of another program, which it left there before. They are
// found by a list.
func (t *servers) verified(v Verifier, owned func(ipvs.Key) bool) (bool, error) {
	before := t.count
	t.count = count(v)
	every := listEvery
	switch {
	case t.grew:
		every = verifyWithin
	case t.ipv6 > 0 || t.count < 0:
		every = listUncountedEvery
	}
	if !t.listedWithin(every) {
		return false, nil
	}
	same, err := t.verify(v)
	if err != nil {
		return false, err
	}
	t.stale = t.stale || !same
	if t.count != before {
		virtuals, err := t.driver.Virtuals()
		if err != nil || !t.same(virtuals, owned) {
			return false, err
		}
	}
	return !t.stale || time.Now().Before(t.rested), nil
}

// count returns the number of virtual servers, -1 if the driver does not count.
func count(v Verifier) int {
	if n, err := v.Count(); err == nil {
		return n
	}
	return -1
}

// verify compares the next virtual servers with the driver's and reports whether they are the same.
func (t *servers) verify(v Verifier) (same bool, err error) {
	now := time.Now()
	elapsed := min(now.Sub(t.rota.at), verifyWithin)
	t.rota.at = now
	share := 1 + int(float64(len(t.have))*elapsed.Seconds()/verifyWithin.Seconds())
	for range min(max(share, verifyLeast), len(t.have)) {
		key := t.rota.take(t.have)
		if same, err := v.Same(key, t.have[key]); err != nil || !same {
			return false, err
		}
		if time.Since(now) >= elapsed/verifyFactor {
			break
		}
	}
	return true, nil
}

// rota is the order in which virtual servers are compared. It is the same in each round, so that the time between two
// comparisons of one is that of a round.
type rota struct {
	keys []ipvs.Key
	next int
	// at is when the last ones were compared.
	at time.Time
}

// add appends a new virtual server to the current round, if any.
func (r *rota) add(key ipvs.Key) {
	if len(r.keys) > 0 {
		r.keys = append(r.keys, key)
	}
}

// take returns the next virtual server of a table, which must not be empty.
func (r *rota) take(table ipvs.Table) ipvs.Key {
	for {
		for r.next < len(r.keys) {
			r.next++
			if key := r.keys[r.next-1]; has(table, key) {
				return key
			}
		}
		r.keys, r.next = slices.AppendSeq(r.keys[:0], maps.Keys(table)), 0
		slices.SortFunc(r.keys, ipvs.Key.Compare)
	}
}
