package nftlb

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// sync makes the known state equal to the kernel's content. Without a foreign change of the tables that costs a system
// call. Otherwise, and in a new process, it reads them. A table with other rules than this process wrote is replaced by
// one with its content, in one transaction. This repairs rules that another program edited or an earlier version
// created. Of others, the elements of each virtual server that is not as the package writes it are replaced.
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
		if found[i], err = list(f, b.scope.Table(), b.counted); err != nil {
			return fmt.Errorf("list nftables table %s %s: %w", f.name, b.scope.Table(), err)
		}
		maps.Copy(virtuals, found[i].virtuals)
	}
	if b.have == nil {
		if err := b.adoptPods(); err != nil {
			return err
		}
	}
	b.have, b.known = virtuals, true
	for i, l := range found {
		t := &b.tables[i]
		switch {
		case l.definition == "":
			*t = table{}
		case l.definition == t.definition && !l.catchAll:
			err = b.replaceDiffering(i, l)
		default:
			err = b.rebuild(i, l)
		}
		if err != nil {
			b.known, t.definition = false, "" // replaced next
			return fmt.Errorf("rebuild nftables table %s %s: %w", families[i].name, b.scope.Table(), err)
		}
	}
	return nil
}

// adoptPods makes the sources of cluster-internal packets of an earlier process the known ones.
func (b *Balancer) adoptPods() error {
	for _, f := range families {
		pods, _, err := listPods(f, b.scope.Table())
		if err != nil {
			return err
		}
		b.pods.Prefixes = append(b.pods.Prefixes, pods.Prefixes...)
		b.pods.Interfaces = append(b.pods.Interfaces, pods.Interfaces...)
	}
	b.pods.Prefixes = ipvs.Disjoint(b.pods.Prefixes)
	b.pods.Interfaces = slices.Compact(slices.Sorted(slices.Values(b.pods.Interfaces)))
	return nil
}

// replaceDiffering replaces the elements of virtual servers that are not as the package writes them, and deletes those
// of none. It does the same for the sources of cluster-internal packets. With foreign affinity it rebuilds the table.
func (b *Balancer) replaceDiffering(family int, l listing) error {
	if _, foreign, err := listAffinity(families[family], b.scope.Table()); err != nil || foreign {
		return errors.Join(err, b.rebuild(family, l))
	}
	var differing []ipvs.Key
	for key := range l.elements {
		if l.differs(key) {
			differing = append(differing, key)
		}
	}
	if err := b.prepare(differing, l.virtuals); err != nil {
		return err
	}
	t := &b.tables[family]
	for c := range t.classes {
		t.classes[c] = 0
	}
	for _, v := range l.virtuals {
		t.count(v, 1)
	}
	batch := nftbatch.New(families[family].number, b.scope.Table())
	for _, e := range l.foreign {
		batch.Delete(e.set, e.Key)
	}
	for _, key := range differing {
		for _, e := range l.elements[key] {
			batch.Delete(e.set, e.Key)
		}
		changes(key, nil, l.virtuals[key], func(c change) { c.add(batch) })
	}
	if err := b.replacePods(family); err != nil {
		return err
	}
	t.stale = true
	if batch.Len() == 0 {
		return nil
	}
	return b.runFunc(func() error { return b.send(batch) }, one(family))
}

func (b *Balancer) replacePods(family int) error {
	f := families[family]
	have, foreign, err := listPods(f, b.scope.Table())
	if err != nil {
		return err
	}
	want := f.podsOf(b.pods)
	have.Prefixes, have.Interfaces = ipvs.Disjoint(have.Prefixes), slices.Sorted(slices.Values(have.Interfaces))
	if have.Equal(want) && !foreign {
		return nil
	}
	tx := b.nft.NewTransaction()
	b.writer(tx, family).pods(b.pods)
	return b.run(tx, one(family))
}

// rebuild replaces the table of a family by one with the content of the listing.
func (b *Balancer) rebuild(family int, l listing) error {
	affinity, _, err := listAffinity(families[family], b.scope.Table())
	if err != nil {
		return err
	}
	tx := b.nft.NewTransaction()
	w := b.writer(tx, family)
	w.newTable(b.scope)
	w.pods(b.pods)
	made := table{exists: true, classes: make(map[class]int)}
	for _, v := range l.virtuals {
		made.count(v, 1)
	}
	order := slices.SortedFunc(maps.Keys(made.classes), compareClasses)
	for _, c := range order {
		w.class(c)
	}
	for key, v := range l.virtuals {
		changes(key, nil, v, w.write)
	}
	for _, r := range affinity {
		if live(l.virtuals[r.virtual], r.real) {
			w.affinity(r)
		}
	}
	made.definition, err = b.define(family, tx, order)
	b.tables[family] = made
	return err
}

// define carries out a transaction with the chains of classes, and returns the definition of the table after it.
func (b *Balancer) define(family int, tx *knftables.Transaction, classes []class) (string, error) {
	if err := b.run(tx, one(family)); err != nil {
		return "", err
	}
	if err := b.addWithAffinity(family, classes); err != nil {
		return "", err
	}
	text, err := definition(families[family], b.scope.Table())
	if err != nil {
		return "", err
	}
	if counts, err := b.watch.Count(); err != nil || counts != (nftwatch.Counts{}) || !b.known {
		b.known = false
		return "", nil
	}
	return text, nil
}

// one returns the count of one transaction on the table of a family.
func one(family int) (c nftwatch.Counts) {
	c[family] = 1
	return c
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
			if next[key] == nil || familyOf(key) != i {
				continue
			}
			missing = !b.tables[i].exists
			for _, c := range next[key].classes() {
				if _, exists := b.tables[i].classes[c]; !exists {
					classes[c] = struct{}{}
				}
			}
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
	text, err := b.define(family, tx, order)
	if err != nil {
		return err
	}
	if !t.exists {
		*t = table{exists: true, classes: make(map[class]int)}
	}
	t.definition = text
	for c := range classes {
		t.classes[c] = 0
	}
	return nil
}

// spareChains is the number of chains that stay although no virtual server requires them: they may soon be again.
const spareChains = 8

// deleteUnused deletes the chains that no virtual server requires, if there are more than a few, or no others.
func (b *Balancer) deleteUnused() error {
	for i := range families {
		t := &b.tables[i]
		var unused []class
		for c, n := range t.classes {
			if n == 0 {
				unused = append(unused, c)
			}
		}
		if !b.known || len(unused) <= spareChains && len(unused) < len(t.classes) || len(unused) == 0 {
			continue
		}
		slices.SortFunc(unused, func(a, c class) int { return compareClasses(c, a) }) // jumps before their targets
		tx := b.nft.NewTransaction()
		for _, c := range unused {
			b.writer(tx, i).deleteClass(c)
			delete(t.classes, c)
		}
		var err error
		if t.definition, err = b.define(i, tx, nil); err != nil {
			return fmt.Errorf("delete unused chains: %w", err)
		}
	}
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
	all, _, err := listAffinity(families[family], b.scope.Table())
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

// CountTraffic makes the balancer count the traffic of each virtual server. It must be called before any other method.
// It costs each packet a lookup, and memory for three more elements of each virtual server.
func (b *Balancer) CountTraffic() { b.counted = true }

// VirtualStats returns the counters of all virtual servers, in three requests for each family; none if traffic is not
// counted. They start at 0 when the virtual server is added, and when the table is replaced: by a new process, and after
// another program has changed it.
func (b *Balancer) VirtualStats() (map[ipvs.Key]ipvs.Stats, error) {
	lister, err := nftbatch.NewLister()
	if err != nil {
		return nil, err
	}
	defer lister.Close()
	stats := make(map[ipvs.Key]ipvs.Stats)
	for _, f := range families {
		for _, set := range counterSets {
			elements, err := lister.Elements(f.number, b.scope.Table(), set)
			if err != nil {
				return nil, fmt.Errorf("read the counters of virtual servers: %w", err)
			}
			for _, e := range elements {
				if key, ok := nftbatch.ParseVirtualServer(e.Key); ok {
					s := stats[key]
					switch set {
					case setConnections:
						s.Connections = e.Packets
					case setIncoming:
						s.PacketsIn, s.BytesIn = e.Packets, e.Bytes
					case setOutgoing:
						s.PacketsOut, s.BytesOut = e.Packets, e.Bytes
					}
					stats[key] = s
				}
			}
		}
	}
	return stats, nil
}
