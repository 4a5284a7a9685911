package nft

import (
	"context"
	"maps"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// write makes the elements the content of a table, with a transaction of nft for what that program defines, and batches
// for the many elements of plain sets. After an error the table is as before, or suspect.
func (f *Filter) write(ctx context.Context, t *table, elements ipvs.Filter) (int, error) {
	now, err := definition(t.family)
	switch {
	case err != nil:
		return 0, err
	case len(elements) == 0 && now == "":
		return 0, nil
	case len(elements) == 0: // the hooks of a table would cost every packet a conntrack lookup
		return 0, f.run(ctx, t, t.removal())
	case now == "":
		return f.fill(ctx, t, elements)
	case t.trusted && now == t.definition && t.ping == !f.DropPing:
		have, err := list(ctx, t.family)
		if err != nil {
			return 0, err
		}
		if !have.catchAll {
			return f.repair(ctx, t, have, elements)
		}
	}
	return len(elements), f.run(ctx, t, t.replacement(maps.Keys(elements), !f.DropPing))
}

// maxElements limits a batch of fill: the kernel sends a notification for each element.
const maxElements = 20000

// fill makes a table that does not exist. Addresses and networks whose packets it drops come last.
func (f *Filter) fill(ctx context.Context, t *table, elements ipvs.Filter) (n int, err error) {
	defer func() {
		if err != nil && f.run(context.WithoutCancel(ctx), t, t.removal()) != nil {
			t.suspect = true
		}
	}()
	early, late := make(ipvs.Filter), make(ipvs.Filter)
	for e := range elements {
		switch {
		case plain(e.Set):
		case e.Set == ipvs.ServiceNetworks:
			late[e] = struct{}{}
		default:
			early[e] = struct{}{}
		}
	}
	if err := f.run(ctx, t, t.replacement(maps.Keys(early), !f.DropPing)); err != nil {
		return 0, err
	}
	batch := t.batch()
	put := func(set ipvs.Set) error {
		for e := range of(elements, set) {
			if batch.Len() == maxElements {
				if err := f.counted(t, batch.Send); err != nil {
					return err
				}
				batch = t.batch()
			}
			batch.Add(set.String(), nftbatch.Element{Key: octets(e)})
		}
		return nil
	}
	for set := range ipvs.NumSets {
		if plain(set) && set != ipvs.Addresses {
			if err := put(set); err != nil {
				return 0, err
			}
		}
	}
	if err := put(ipvs.Addresses); err != nil {
		return 0, err
	}
	if err := f.send(t, batch); err != nil {
		return 0, err
	}
	tx := t.nft.NewTransaction()
	add(tx, maps.Keys(late))
	return len(elements), f.runAny(ctx, t, tx)
}

// repair changes the elements that differ, of a table whose definition is as built, in the same order.
func (f *Filter) repair(ctx context.Context, t *table, have listing, want ipvs.Filter) (n int, err error) {
	defer func() {
		if err != nil {
			t.suspect, t.trusted = true, false
		}
	}()
	batch := t.batch()
	for set, keys := range have.keys {
		for _, key := range keys {
			batch.Delete(set.String(), key)
		}
	}
	for e := range have.elements {
		if plain(e.Set) && !has(want, e) {
			batch.Delete(e.Set.String(), octets(e))
		}
	}
	for e := range want {
		if plain(e.Set) && !has(have.elements, e) {
			batch.Add(e.Set.String(), nftbatch.Element{Key: octets(e)})
		}
	}
	early, late := t.nft.NewTransaction(), t.nft.NewTransaction()
	for set := range ipvs.NumSets {
		switch {
		case shapes[set] == 0 || plain(set):
		case set == ipvs.ServiceNetworks:
			have.repairIntervals(late, set, want)
		default:
			have.repairIntervals(early, set, want)
		}
	}
	if err := f.runAny(ctx, t, early); err != nil {
		return 0, err
	}
	if err := f.send(t, batch); err != nil {
		return 0, err
	}
	return early.NumOperations() + batch.Len() + late.NumOperations(), f.runAny(ctx, t, late)
}

// repairIntervals changes the elements of a set that differ, deletions first: nftables refuses an addition while an
// overlapping element exists.
func (l listing) repairIntervals(tx *knftables.Transaction, set ipvs.Set, want ipvs.Filter) {
	var less, more []ipvs.Element
	for e := range of(l.elements, set) {
		if !has(want, e) {
			less = append(less, e)
		}
	}
	for e := range of(want, set) {
		if !has(l.elements, e) {
			more = append(more, e)
		}
	}
	if _, foreign := l.intervals[set]; foreign || shapes[set] == incoming && len(less)+len(more) > 0 {
		replaceSet(tx, set, want)
		return
	}
	for _, e := range less {
		tx.Delete(&knftables.Element{Set: set.String(), Key: fields(e)})
	}
	add(tx, slices.Values(more))
}

func has(f ipvs.Filter, e ipvs.Element) bool { _, ok := f[e]; return ok }

// edit carries out changes of elements in one transaction. The program nft carries out those that change intervals.
func (f *Filter) edit(ctx context.Context, t *table, changes []ipvs.FilterChange) error {
	batch := t.batch()
	for _, c := range changes {
		switch set := c.Element.Set; {
		case !plain(set):
			return f.run(ctx, t, t.edit(changes))
		case c.Delete:
			batch.Delete(set.String(), octets(c.Element))
		default:
			batch.Add(set.String(), nftbatch.Element{Key: octets(c.Element)})
		}
	}
	return f.send(t, batch)
}

// batch returns an empty batch for the table.
func (t *table) batch() *nftbatch.Batch { return nftbatch.New(t.family.number, TableName) }

// send carries out a batch, which may be empty.
func (f *Filter) send(t *table, batch *nftbatch.Batch) error {
	if batch.Len() == 0 {
		return nil
	}
	return f.counted(t, batch.Send)
}

// runAny carries out a transaction of nft, which may be empty.
func (f *Filter) runAny(ctx context.Context, t *table, tx *knftables.Transaction) error {
	if tx.NumOperations() == 0 {
		return nil
	}
	return f.run(ctx, t, tx)
}
