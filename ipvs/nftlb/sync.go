package nftlb

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// sync makes the known state equal to the kernel's content. Without a foreign change of the tables that costs a system
// call. Otherwise, and in a new process, it reads them and rebuilds them from their content, each in one transaction.
// This repairs rules that another program edited or an earlier version created, and detects missing virtual servers.
func (b *Balancer) sync() error {
	counts, err := b.watch.Count()
	if b.known && err == nil && counts == (nftwatch.Counts{}) {
		return b.deleteStale()
	}
	b.known = false
	b.generation++
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
		b.pods.Prefixes = ipvs.Disjoint(b.pods.Prefixes)
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
			return fmt.Errorf("rebuild nftables table %s %s: %w", families[i].name, b.scope.Table(), err)
		}
	}
	return nil
}

// rebuild replaces the table of a family by one with the content of the listing.
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
		changes(key, nil, v, w.write)
	}
	for _, r := range l.affinity {
		if live(l.virtuals[r.virtual], r.real) {
			w.affinity(r)
		}
	}
	if err := b.run(tx, one(family)); err != nil {
		return err
	}
	if err := b.addWithAffinity(family, order); err != nil {
		return err
	}
	b.tables[family] = table{exists: true, classes: classes}
	return nil
}

// one returns the count of one transaction on the table of a family.
func one(family int) (c nftwatch.Counts) {
	c[family] = 1
	return c
}

// addClasses adds the classes that a virtual server requires.
func addClasses(classes map[class]struct{}, v *virtual) {
	c := v.class()
	if c.choice == refuse {
		return // its chain always exists
	}
	classes[c] = struct{}{}
	classes[c.withoutAffinity()] = struct{}{}
	if c.sticky {
		classes[v.affinity()] = struct{}{}
	}
}

// addWithAffinity completes the chains of the classes that record affinity.
func (b *Balancer) addWithAffinity(family int, classes []class) error {
	classes = slices.DeleteFunc(classes, func(c class) bool { return c.choice != withAffinity })
	if len(classes) == 0 {
		return nil
	}
	return b.runFunc(func() error { return addAffinityRules(families[family], b.scope.Table(), classes) }, one(family))
}

// prepare creates the missing tables and chains of classes that the virtual servers require.
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
	if err := b.addWithAffinity(family, order); err != nil {
		return err
	}
	if !t.exists {
		*t = table{exists: true, classes: make(map[class]struct{})}
	}
	maps.Copy(t.classes, classes)
	return nil
}

// deleteStale deletes the affinity to real servers that get no new connections any more, if a change since the last
// call may have left some. Its cost follows the number of clients with affinity, of all virtual servers.
func (b *Balancer) deleteStale() error {
	for i := range families {
		const tries = 3 // a packet translated before the change may be recorded after the listing
		for n := 0; b.tables[i].stale && n < tries; n++ {
			left, err := b.deleteStaleOnce(i)
			if err != nil {
				return fmt.Errorf("delete the affinity to deleted real servers: %w", err)
			}
			b.tables[i].stale = left
		}
	}
	return nil
}

// deleteStaleOnce reports whether it found any.
func (b *Balancer) deleteStaleOnce(family int) (bool, error) {
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
			w.affinity(r) // so that deleting it does not fail if it has expired by now
		}
		w.deleteAffinity(r)
	}
	if tx.NumOperations() == 0 {
		return false, nil
	}
	return true, b.run(tx, one(family))
}
