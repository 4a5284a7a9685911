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
	// backoffFactor bounds the cost of an operation that repeats for a while: after one that took d, the next one waits
	// backoffFactor times d.
	backoffFactor = 20
	// verifyWithin is the time in which each virtual server of a Verifier is verified, so that an edit is restored within
	// ten seconds. verifyFactor bounds the cost, to 1 % of a core, and has precedence. verifyLeast are verified each time.
	verifyWithin = 9 * time.Second
	verifyFactor = 100
	verifyLeast  = 50
	// listEvery applies to lists that would find nothing else than an error of this program, and with IPv4 a virtual
	// server that another program added to an address of IronLB after it deleted another. listIPv6Every applies if a
	// Verifier has virtual servers of IPv6: no number reveals an addition.
	listEvery     = 10 * time.Minute
	listIPv6Every = time.Minute
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
	// listed is when have was last listed. stale is set if have may differ from the driver's state since: an own change
	// failed.
	listed time.Time
	stale  bool
	// generation is what the driver's Watcher returned last.
	generation uint64
	// count is what the driver's Verifier returned last, changed by what was added and deleted since. rota are the keys
	// that are verified round robin, next is the index of the next one, and verified when the last ones were.
	count    int
	rota     []ipvs.Key
	next     int
	verified time.Time
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

// current reports whether have needs no list: a Watcher detected no change, or a Verifier has the same number of
// virtual servers and those that are verified now. Any other driver is listed each time.
func (t *servers) current(owned func(ipvs.Key) bool) (bool, error) {
	if w, ok := t.driver.(Watcher); ok {
		generation, watched, err := w.Generation()
		if err != nil {
			return false, err
		}
		if watched {
			unchanged := !t.stale && generation == t.generation
			t.generation = generation
			return unchanged && t.listedSince(listEvery), nil
		}
	}
	v, ok := t.driver.(Verifier)
	if !ok {
		return false, nil
	}
	before := t.count
	t.count = count(v)
	every := listEvery
	if t.ipv6 > 0 {
		every = listIPv6Every
	}
	if !t.listedSince(every) {
		return false, nil
	}
	if same, err := t.verify(v); err != nil || !same || t.count == before {
		return same, err
	}
	virtuals, err := t.driver.Virtuals()
	return err == nil && t.same(virtuals, owned), err
}

// listedSince reports whether have was listed within a time.
func (t *servers) listedSince(every time.Duration) bool {
	return t.have != nil && time.Since(t.listed) < every
}

// count returns the number of virtual servers, -1 if the driver does not count: verification alone reveals changes
// then.
func count(v Verifier) int {
	if n, err := v.Count(); err == nil {
		return n
	}
	return -1
}

// verify compares the next virtual servers with the driver's and reports whether they are the same.
func (t *servers) verify(driver Verifier) (same bool, err error) {
	now := time.Now()
	elapsed := min(now.Sub(t.verified), verifyWithin)
	t.verified = now
	n := max(verifyLeast, 1+int(float64(len(t.have))*elapsed.Seconds()/verifyWithin.Seconds()))
	for range min(n, len(t.have)) {
		if t.next == len(t.rota) {
			t.rota, t.next = slices.AppendSeq(t.rota[:0], maps.Keys(t.have)), 0
		}
		key := t.rota[t.next]
		t.next++
		if vs, exists := t.have[key]; exists {
			if same, err := driver.Same(key, vs); err != nil || !same {
				return false, err
			}
		}
		if time.Since(now) >= elapsed/verifyFactor {
			break
		}
	}
	return true, nil
}

// list lists the owned virtual servers and reports whether have was different.
func (t *servers) list(owned func(ipvs.Key) bool) (differs bool, err error) {
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
	t.listed, t.stale = time.Now(), false
	return t.set(table, owned), nil
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
		t.ipv6++
	} else {
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
