package nftlb

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// sync makes known what the kernel holds. That costs a system call when nobody else has changed our tables since. Otherwise, and
// in a new process, it reads them and makes them anew from what they hold, each in one transaction: so rules that somebody edited or that an
// earlier version made are mended, and virtual servers that are gone are seen to be gone.
func (b *Balancer) sync() error {
	counts, err := b.watch.Count()
	if b.known && err == nil && counts == (nftwatch.Counts{}) {
		return b.forget()
	}
	b.known = false
	virtuals := make(map[ipvs.Key]*virtual)
	var found [nftwatch.NumFamilies]listing
	for i, f := range families {
		if found[i], err = list(f, b.scope.Table()); err != nil {
			return err
		}
		maps.Copy(virtuals, found[i].virtuals)
		if b.have == nil {
			b.pods.Prefixes = append(b.pods.Prefixes, found[i].pods.Prefixes...)
			b.pods.Interfaces = append(b.pods.Interfaces, found[i].pods.Interfaces...)
		}
	}
	if b.have == nil {
		b.pods.Prefixes = reduce(b.pods.Prefixes)
		b.pods.Interfaces = slices.Compact(slices.Sorted(slices.Values(b.pods.Interfaces)))
	}
	b.have, b.known = virtuals, true
	for i := range families {
		b.tables[i] = table{}
		if !found[i].exists {
			continue
		}
		if err := b.rebuild(i, found[i]); err != nil {
			b.known = false
			return fmt.Errorf("make nftables table %s %s anew: %w", families[i].name, b.scope.Table(), err)
		}
	}
	return nil
}

// rebuild replaces the table of a family by one that holds the listing.
func (b *Balancer) rebuild(family int, l listing) error {
	tx := b.nft.NewTransaction()
	w := b.writer(tx, family)
	w.newTable(b.scope)
	w.pods(b.pods)
	classes := make(map[class]struct{})
	for _, v := range l.virtuals {
		addClasses(classes, v)
	}
	order := slices.SortedFunc(maps.Keys(classes), compareClasses)
	for _, c := range order {
		w.class(c)
	}
	for key, v := range l.virtuals {
		w.virtual(key, nil, v)
	}
	for _, r := range l.affinity {
		if live(l.virtuals[r.virtual], r.real) {
			w.remembered(r)
		}
	}
	if err := b.run(tx, one(family)); err != nil {
		return err
	}
	if err := b.addRemembering(family, order); err != nil {
		return err
	}
	b.tables[family] = table{exists: true, classes: classes}
	return nil
}

// one is the count of one transaction on the table of a family.
func one(family int) (c nftwatch.Counts) {
	c[family] = 1
	return c
}

// addClasses adds the classes that a virtual server needs.
func addClasses(classes map[class]struct{}, v *virtual) {
	c := v.class()
	if c.choice == refuse {
		return // its chain is always there
	}
	classes[c] = struct{}{}
	classes[c.forgetful()] = struct{}{}
	if c.sticky {
		classes[v.memory()] = struct{}{}
	}
}

// addRemembering completes the chains of those classes that remember.
func (b *Balancer) addRemembering(family int, classes []class) error {
	classes = slices.DeleteFunc(classes, func(c class) bool { return c.choice != remembering })
	if len(classes) == 0 {
		return nil
	}
	return b.runFunc(func() error { return addRemembering(families[family], b.scope.Table(), classes) }, one(family))
}

// prepare makes the tables and the chains of classes that the virtual servers need and that are not there yet.
func (b *Balancer) prepare(keys []ipvs.Key, next map[ipvs.Key]*virtual) error {
	for i := range families {
		classes := make(map[class]struct{})
		missing := false
		for _, key := range keys {
			if v := next[key]; v != nil && familyOf(key) == i {
				addClasses(classes, v)
				missing = !b.tables[i].exists
			}
		}
		for c := range b.tables[i].classes {
			delete(classes, c)
		}
		if len(classes) == 0 && !missing {
			continue
		}
		if err := b.makeChains(i, classes); err != nil {
			return err
		}
	}
	return nil
}

func (b *Balancer) makeChains(family int, classes map[class]struct{}) error {
	order := slices.SortedFunc(maps.Keys(classes), compareClasses)
	tx := b.nft.NewTransaction()
	w := b.writer(tx, family)
	t := &b.tables[family]
	if !t.exists {
		w.newTable(b.scope)
		w.pods(b.pods)
	}
	for _, c := range order {
		w.class(c)
	}
	if err := b.run(tx, one(family)); err != nil {
		return err
	}
	if err := b.addRemembering(family, order); err != nil {
		return err
	}
	if !t.exists {
		*t = table{exists: true, classes: make(map[class]struct{})}
	}
	maps.Copy(t.classes, classes)
	return nil
}

// forget deletes from affinity who is remembered for a real server that gets no new connections any more, where a change since
// the last time makes that possible. Its cost follows the number of clients remembered, of all virtual servers.
func (b *Balancer) forget() error {
	for i := range families {
		const tries = 3 // a packet that chose before the change may be noted after the look
		for n := 0; b.tables[i].stale && n < tries; n++ {
			left, err := b.forgetOnce(i)
			if err != nil {
				return fmt.Errorf("forget the clients of real servers that are gone: %w", err)
			}
			b.tables[i].stale = left
		}
	}
	return nil
}

// forgetOnce tells whether it found any.
func (b *Balancer) forgetOnce(family int) (bool, error) {
	all, err := listAffinity(families[family], b.scope.Table())
	if err != nil {
		return true, err
	}
	tx := b.nft.NewTransaction()
	w := b.writer(tx, family)
	for _, r := range all {
		if live(b.have[r.virtual], r.real) {
			continue
		}
		const soon = 60
		if r.expires < soon {
			w.remembered(r) // so that deleting it does not fail when its time is over by now
		}
		w.forgotten(r)
	}
	if tx.NumOperations() == 0 {
		return false, nil
	}
	return true, b.run(tx, one(family))
}
