package speaker

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// servers are the virtual servers of ours that a driver holds, as they were seen last and changed since. The zero value,
// without a driver, holds none and is never changed.
type servers struct {
	driver VirtualServers
	// have is nil until it was seen. keys are those of it by address, reals the number of its real servers.
	have  ipvs.Table
	keys  map[netip.Addr]map[ipvs.Key]struct{}
	reals int
	// count is what the driver's Counter said when have was last seen to be true, or made so.
	count int
	// virtuals is when the virtual servers are listed next, whole when their real servers are, too.
	virtuals, whole time.Time
}

// look brings have up to date and tells whether it was wrong. mine tells which virtual servers are ours.
//
// Listing all real servers is one request for each virtual server, so it is done less and less often the longer it takes;
// so is, within bounds that let an edit be found in time, listing the virtual servers alone. A flush shows in their number.
func (t *servers) look(mine func(ipvs.Key) bool) (differs bool, err error) {
	if t.driver == nil {
		return false, nil
	}
	start := time.Now()
	if t.have != nil && start.Before(t.virtuals) && start.Before(t.whole) && t.counted() {
		return false, nil
	}
	virtuals, err := t.driver.Virtuals()
	if err != nil {
		return false, err
	}
	ours := map[netip.Addr]struct{}{}
	for key := range virtuals {
		if mine(key) {
			ours[key.Addr] = struct{}{}
		}
	}
	seen := time.Now()
	t.virtuals = seen.Add(min(restShare*seen.Sub(start), virtualsMost))
	if t.have != nil && seen.Before(t.whole) && t.same(virtuals, mine) {
		t.recount()
		return false, nil
	}
	table, err := t.driver.ListOf(ours)
	if err != nil {
		return false, err
	}
	listed := time.Now()
	t.whole = listed.Add(min(max(restShare*listed.Sub(start), relistLeast), relistMost))
	return t.set(table, mine), nil
}

// same tells whether of the virtual servers ours are as we know them.
func (t *servers) same(virtuals map[ipvs.Key]ipvs.Settings, mine func(ipvs.Key) bool) bool {
	found := 0
	for key, settings := range virtuals {
		if !mine(key) {
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

// set replaces have by ours of a table and tells whether that differs.
func (t *servers) set(table ipvs.Table, mine func(ipvs.Key) bool) (differs bool) {
	t.recount()
	maps.DeleteFunc(table, func(key ipvs.Key, _ ipvs.VirtualServer) bool { return !mine(key) })
	if t.have != nil && t.have.Equal(table) {
		return false
	}
	t.have, t.keys, t.reals = table, map[netip.Addr]map[ipvs.Key]struct{}{}, 0
	for key := range table {
		t.note(key, 0)
	}
	return true
}

// relist brings have up to date for some addresses.
func (t *servers) relist(addrs map[netip.Addr]struct{}, mine func(ipvs.Key) bool) error {
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
			t.note(key, reals)
		}
	}
	for key, vs := range table {
		if mine(key) {
			t.have[key] = vs
			t.note(key, 0)
		}
	}
	return nil
}

// note keeps the index and the number of real servers in step with have after a change of one virtual server, which had
// some real servers before.
func (t *servers) note(key ipvs.Key, before int) {
	vs, exists := t.have[key]
	t.reals += len(vs.RealServers) - before
	switch {
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
}

// apply makes some virtual servers as wanted; one that is absent from want must not be there. It returns what it did,
// and the virtual servers of what it could not do.
func (t *servers) apply(keys map[ipvs.Key]struct{}, want ipvs.Table) (done []ipvs.Op, failed map[ipvs.Key]struct{}, err error) {
	have := make(ipvs.Table, len(keys))
	for key := range keys {
		if vs, ok := t.have[key]; ok {
			have[key] = vs
		}
	}
	ops := ipvs.Diff(have, want)
	if len(ops) == 0 {
		return nil, nil, nil
	}
	failed = map[ipvs.Key]struct{}{}
	done, err = t.driver.Apply(ops)
	for _, op := range done {
		before := len(t.have[op.Virtual].RealServers)
		if noteErr := t.have.Apply(op); noteErr != nil { // another than we thought was there
			err = errors.Join(err, fmt.Errorf("note what was done: %w", noteErr))
			failed[op.Virtual] = struct{}{}
		}
		t.note(op.Virtual, before)
	}
	t.recount()
	for i, n := 0, 0; i < len(ops); i++ {
		if n < len(done) && done[n] == ops[i] {
			n++
			continue
		}
		failed[ops[i].Virtual] = struct{}{}
	}
	return done, failed, err
}

// counted tells whether the driver holds as many as it did.
func (t *servers) counted() bool {
	counter, ok := t.driver.(Counter)
	if !ok {
		return true
	}
	n, err := counter.Count()
	return err == nil && n == t.count
}

func (t *servers) recount() {
	if counter, ok := t.driver.(Counter); ok {
		var err error
		if t.count, err = counter.Count(); err != nil {
			t.count = -1
		}
	}
}
