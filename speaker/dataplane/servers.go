package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// How often lists of virtual servers are repeated.
const (
	// backoffFactor bounds the cost of an operation that repeats for a while: after one that took d, the next one waits
	// backoffFactor times d. auditFactor is that of lists, which repeat always: 1 % of a core. The maximum depends on
	// what else would reveal a change.
	backoffFactor = 20
	auditFactor   = 100
	// listMax applies to lists of virtual servers, and with listMin to those of real servers, which cost one request per
	// virtual server: an edit is restored within ten seconds. uncountedMax applies to lists of virtual servers whose
	// number the driver does not count, those of IPv6: a flush is restored within two seconds.
	listMin      = 900 * time.Millisecond
	listMax      = 9 * time.Second
	uncountedMax = 1400 * time.Millisecond
	// watchedListEvery applies to lists of a Watcher, which would find nothing else than an error of this program.
	watchedListEvery = 10 * time.Minute
	// applyMost is the number of virtual servers that are changed at once: the memory that a change takes does not grow
	// with the number of Services.
	applyMost = 500
)

// servers are the owned virtual servers of a driver, as last listed and changed since. The zero value, without a
// driver, has none and is never changed.
type servers struct {
	driver VirtualServers
	// have is nil until the first list. keys are its keys by address, reals the number of its real servers, uncounted that
	// of its virtual servers that a Counter does not count.
	have             ipvs.Table
	keys             map[netip.Addr]map[ipvs.Key]struct{}
	reals, uncounted int
	// count is what the driver's Counter returned before have was last listed, changed by what was added and deleted.
	count int
	// listed is when the virtual servers were last listed, and rest how long to wait for the next time, unless uncounted.
	// full is when they are listed with their real servers.
	listed time.Time
	rest   time.Duration
	full   time.Time
	// generation is what the driver's Watcher returned before have was last listed. stale is set if have may differ from
	// the driver's state since: an own change failed.
	generation uint64
	stale      bool
}

// observe brings have up to date and reports whether it was wrong. owned reports whether a virtual server is owned.
//
// The interval of each list grows with its duration, within bounds that let an edit be found in time. The number of
// virtual servers reveals a flush. A Watcher detects each change, so that nothing is listed while there is none.
func (t *servers) observe(owned func(ipvs.Key) bool) (differs bool, err error) {
	if t.driver == nil {
		return false, nil
	}
	start := time.Now()
	generation, watched, err := t.watched()
	count, counts := t.counted()
	switch {
	case err != nil:
		return false, err
	case watched && t.have != nil && !t.stale && generation == t.generation && start.Before(t.full):
		return false, nil
	case !watched && t.have != nil && start.Before(t.due(counts)) && start.Before(t.full) && count == t.count:
		return false, nil
	}
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
	seen := time.Now()
	t.count, t.listed, t.rest = count, seen, min(auditFactor*seen.Sub(start), listMax)
	if t.have != nil && !watched && seen.Before(t.full) && t.same(virtuals, owned) {
		return false, nil
	}
	table, err := t.driver.ListOf(ours)
	if err != nil {
		return false, err
	}
	listed := time.Now()
	t.full = listed.Add(min(max(auditFactor*listed.Sub(start), listMin), listMax))
	if watched {
		t.full, t.generation, t.stale = listed.Add(watchedListEvery), generation, false
	}
	return t.set(table, owned), nil
}

// due returns when the virtual servers are listed next.
func (t *servers) due(counts bool) time.Time {
	if !counts || t.uncounted > 0 {
		return t.listed.Add(min(t.rest, uncountedMax))
	}
	return t.listed.Add(t.rest)
}

// watched returns the generation of a Watcher.
func (t *servers) watched() (generation uint64, watched bool, err error) {
	if w, ok := t.driver.(Watcher); ok {
		return w.Generation()
	}
	return 0, false, nil
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
	t.have, t.keys, t.reals, t.uncounted = table, map[netip.Addr]map[ipvs.Key]struct{}{}, 0, 0
	for key := range table {
		t.reindex(key, 0)
	}
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
	for addr := range addrs {
		for key := range t.keys[addr] {
			reals := len(t.have[key].RealServers)
			delete(t.have, key)
			t.reindex(key, reals)
		}
	}
	for key, vs := range table {
		if owned(key) {
			t.have[key] = vs
			t.reindex(key, 0)
		}
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
		t.keys[key.Addr] = map[ipvs.Key]struct{}{key: {}}
	case exists:
		t.keys[key.Addr][key] = struct{}{}
	default:
		delete(t.keys[key.Addr], key)
		if len(t.keys[key.Addr]) == 0 {
			delete(t.keys, key.Addr)
		}
	}
	if key.Addr.Is4() {
		return
	}
	if exists {
		t.uncounted++
	} else {
		t.uncounted--
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
		case !op.Virtual.Addr.Is4():
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

// counted returns the number of a Counter, and whether there is one.
func (t *servers) counted() (count int, counts bool) {
	counter, ok := t.driver.(Counter)
	if !ok {
		return t.count, false
	}
	count, err := counter.Count()
	if err != nil {
		return -1, true
	}
	return count, true
}
