package nftlb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// Apply carries out the ops in order, in one transaction for each family, and returns those done. Adding an existing
// object edits it, deleting an absent one succeeds, editing an absent one fails. Apply continues after an error as
// [ipvs.Each] does: a refusal by nftables is narrowed down to the virtual servers that cause it.
//
// The cost follows the virtual servers of the ops, whatever the number of others.
func (b *Balancer) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return nil, err
	}
	next, done, wrong := b.edit(ops)
	if b.commit(slices.Collect(maps.Keys(next)), next) == nil {
		return done, errors.Join(wrong, b.deleteStale(), b.deleteUnused())
	}
	// Another program may have changed the tables just now: sync once more.
	if err := b.sync(); err != nil {
		return nil, errors.Join(wrong, err)
	}
	next, done, wrong = b.edit(ops)
	failed := make(map[ipvs.Key]error)
	b.narrow(slices.SortedFunc(maps.Keys(next), ipvs.Key.Compare), next, failed)
	errs := []error{wrong}
	done = slices.DeleteFunc(done, func(op ipvs.Op) bool {
		err := failed[op.Virtual]
		if err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", op, err))
		}
		return err != nil
	})
	return done, errors.Join(append(errs, b.deleteStale(), b.deleteUnused())...)
}

// edit returns the new state of the virtual servers in the ops, nil for a deleted one, the ops that can be done, and
// the errors of the others.
func (b *Balancer) edit(ops []ipvs.Op) (map[ipvs.Key]*virtual, []ipvs.Op, error) {
	scratch := make(ipvs.Table)
	touched := make(map[ipvs.Key]struct{})
	done, err := ipvs.Each(ops, func(op ipvs.Op) error {
		if err := check(op); err != nil {
			return fmt.Errorf("%v: %w", op, err)
		}
		if _, seen := touched[op.Virtual]; !seen {
			touched[op.Virtual] = struct{}{}
			if v := b.have[op.Virtual]; v != nil {
				scratch[op.Virtual] = ipvs.VirtualServer{Settings: v.Settings, RealServers: maps.Clone(v.RealServers)}
			}
		}
		return scratch.Apply(op)
	})
	next := make(map[ipvs.Key]*virtual, len(touched))
	for key := range touched {
		vs, exists := scratch[key]
		have := b.have[key]
		switch {
		case !exists && have != nil:
			next[key] = nil
		case exists && have == nil:
			next[key] = &virtual{VirtualServer: vs, layout: lay(layout{}, vs), counted: b.counted}
		case exists && (have.Settings != vs.Settings || !maps.Equal(have.RealServers, vs.RealServers)):
			next[key] = &virtual{VirtualServer: vs, layout: lay(have.layout, vs), counted: b.counted}
		}
	}
	return next, done, err
}

// check returns the errors of an op that [ipvs.Op.Validate] does not detect.
func check(op ipvs.Op) error {
	if op.Virtual.Addr.Zone() != "" || op.Real.Addr().Zone() != "" {
		return fmt.Errorf("%w address with a zone", ipvs.ErrInvalid)
	}
	if op.Action != ipvs.AddVirtual && op.Action != ipvs.EditVirtual || op.Settings.Scheduler == "" {
		return nil
	}
	return checkScheduler(op.Settings.Scheduler)
}

// commit carries out the changes of these virtual servers in one transaction for each family, after the required chains
// exist. After an error the tables must be read again.
func (b *Balancer) commit(keys []ipvs.Key, next map[ipvs.Key]*virtual) error {
	if len(keys) == 0 {
		return nil
	}
	if err := b.prepare(keys, next); err != nil {
		return err
	}
	var batches [nftwatch.NumFamilies]*nftbatch.Batch
	for i, f := range families {
		batches[i] = nftbatch.New(f.number, b.scope.Table())
	}
	for _, key := range keys {
		changes(key, b.have[key], next[key], func(c change) { c.add(batches[familyOf(key)]) })
	}
	for i, batch := range batches {
		if batch.Len() == 0 {
			continue
		}
		if err := b.runFunc(func() error { return b.send(batch) }, one(i)); err != nil {
			return err
		}
	}
	for _, key := range keys {
		t := &b.tables[familyOf(key)]
		t.stale = t.stale || strands(b.have[key], next[key])
		t.count(b.have[key], -1)
		t.count(next[key], 1)
		if next[key] == nil {
			delete(b.have, key)
		} else {
			b.have[key] = next[key]
		}
	}
	return nil
}

// narrow commits the changes, in halves if nftables refuses them, until the refused ones are found. If nftables does
// not work at all, so that the tables cannot be read either, all have failed.
func (b *Balancer) narrow(keys []ipvs.Key, next map[ipvs.Key]*virtual, failed map[ipvs.Key]error) {
	err := b.commit(keys, next)
	if err == nil {
		return
	}
	if b.sync() != nil || len(keys) == 1 {
		for _, key := range keys {
			failed[key] = err
		}
		return
	}
	half := len(keys) / 2
	b.narrow(keys[:half], next, failed)
	b.narrow(keys[half:], next, failed)
}

// Remove deletes the tables. It succeeds if there are none. Existing connections stay.
func (b *Balancer) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return err
	}
	tx := b.nft.NewTransaction()
	var touched nftwatch.Counts
	for i, t := range b.tables {
		if t.exists {
			b.writer(tx, i).removeTable()
			touched[i] = 1
		}
	}
	b.known = false
	if touched == (nftwatch.Counts{}) {
		return nil
	}
	return b.run(tx, touched)
}

// SetPods sets the sources that are cluster-internal. It does not affect existing connections.
func (b *Balancer) SetPods(pods ipvs.PodSources) error {
	for _, p := range pods.Prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("set the Pods' networks: %w prefix %v", ipvs.ErrInvalid, p)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return err
	}
	pods.Prefixes, pods.Interfaces = ipvs.Disjoint(pods.Prefixes), slices.Sorted(slices.Values(pods.Interfaces))
	if pods.Equal(b.pods) {
		return nil
	}
	tx := b.nft.NewTransaction()
	var touched nftwatch.Counts
	for i, t := range b.tables {
		if t.exists {
			b.writer(tx, i).pods(pods)
			touched[i] = 1
		}
	}
	if touched != (nftwatch.Counts{}) {
		if err := b.run(tx, touched); err != nil {
			return fmt.Errorf("set the Pods' networks: %w", err)
		}
	}
	b.pods = pods
	return nil
}

// Generation returns a number that changes when the tables were read because another program changed them, or an own
// change failed: what was listed before is then outdated. Otherwise it costs a system call.
func (b *Balancer) Generation() (n uint64, watched bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	err = b.sync()
	return b.generation, true, err
}

// List returns all virtual servers.
func (b *Balancer) List() (ipvs.Table, error) {
	return b.list(func(netip.Addr) bool { return true })
}

// ListOf returns the virtual servers of these addresses.
func (b *Balancer) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return b.list(func(a netip.Addr) bool { _, ok := addrs[a]; return ok })
}

func (b *Balancer) list(want func(netip.Addr) bool) (ipvs.Table, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return nil, err
	}
	found := make(ipvs.Table)
	for key, v := range b.have {
		if want(key.Addr) {
			found[key] = ipvs.VirtualServer{Settings: v.Settings, RealServers: maps.Clone(v.RealServers)}
		}
	}
	return found, nil
}

// Virtuals returns the virtual servers without their real servers. Without a foreign change of the tables it costs a
// system call and a copy.
func (b *Balancer) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return nil, err
	}
	virtuals := make(map[ipvs.Key]ipvs.Settings, len(b.have))
	for key, v := range b.have {
		virtuals[key] = v.Settings
	}
	return virtuals, nil
}

// Probe checks whether the scheduler is supported and whether the kernel accepts the rules that implement it. It leaves
// nothing.
//
// The error wraps [ipvs.ErrNoScheduler] or includes the remediation.
func (b *Balancer) Probe(name string) error {
	if err := checkScheduler(name); err != nil {
		return fmt.Errorf("probe nftables: %w", err)
	}
	tx := b.nft.NewTransaction()
	w := b.writer(tx, nftwatch.IP)
	w.table += "-probe"
	w.newTable(b.scope)
	w.class(classOf(ipvs.Settings{Scheduler: name}, 1))
	if err := b.nft.Check(context.Background(), tx); err != nil {
		return fmt.Errorf("probe nftables (needs CAP_NET_ADMIN and a kernel with nft_nat, nft_numgen, nft_hash and nft_reject): %w", err)
	}
	return nil
}
