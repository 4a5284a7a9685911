package direct

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// table is the known state of the table of one family.
type table struct {
	exists bool
	// directed and closed are the elements of the sets of that name.
	directed, closed map[ipvs.Key]struct{}
	tiers            [numTiers]tier
	// errors are the chains of the ICMP errors of the directed virtual servers.
	errors map[ipvs.Key]string
	nodes  map[netip.Addr]struct{}
	pods   ipvs.PodSources
}

func newTable() table {
	return table{
		exists: true, directed: make(map[ipvs.Key]struct{}), closed: make(map[ipvs.Key]struct{}),
		tiers:  [numTiers]tier{newTier(first), newTier(second)},
		errors: make(map[ipvs.Key]string), nodes: make(map[netip.Addr]struct{}),
	}
}

// wanted is the wanted state of one family: the contents of the virtual servers that may change, nil for deleted ones,
// and which of them are closed.
type wanted struct {
	virtuals map[ipvs.Key]*[numTiers]content
	closed   map[ipvs.Key]struct{}
	nodes    map[netip.Addr]struct{}
	pods     ipvs.PodSources
	frame
}

// directed returns the virtual servers with a content.
func (w wanted) directed() (keys []ipvs.Key) {
	for key, contents := range w.virtuals {
		if contents != nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// syncTable makes the table of a family as wanted, whatever exists. Only differences of elements are written. The rules
// are always written, since nft lists them in another form.
func (d *Driver) syncTable(ctx context.Context, i int, want wanted) error {
	l, err := list(ctx, families[i])
	if err != nil {
		return err
	}
	w, t, chains := d.writer(i), newTable(), want.chains(families[i])
	adopted := l.exists && l.matches(chains)
	if adopted {
		t.adopt(w, l)
	} else {
		if err := d.guard(ctx, i, want.directed()); err != nil {
			return err
		}
		w.removeTable()
		w.newTable()
	}
	for _, c := range chains {
		w.chain(c)
	}
	w.pods(want.pods)
	t.pods = want.pods
	keys := t.keys()
	for key := range want.virtuals {
		keys[key] = struct{}{}
	}
	sorted := slices.SortedFunc(maps.Keys(keys), ipvs.Key.Compare)
	if adopted {
		t.edit(w, want, sorted)
	} else {
		for n := range sorted {
			t.edit(w, want, sorted[n:n+1])
			w.split()
		}
	}
	t.editNodes(w, want.nodes) // last: packets from them enter the tunnels
	if err := d.commit(ctx, i, w); err != nil {
		return err
	}
	d.tables[i] = t
	return nil
}

// editTable changes a known table.
func (d *Driver) editTable(ctx context.Context, i int, want wanted) error {
	w, t := d.writer(i), &d.tables[i]
	t.editNodes(w, want.nodes)
	if !t.pods.Equal(want.pods) {
		w.pods(want.pods)
		t.pods = want.pods
	}
	t.edit(w, want, slices.Collect(maps.Keys(want.virtuals)))
	return d.commit(ctx, i, w)
}

// adopt makes the elements of a listing the known state, with new rules.
func (t *table) adopt(w writer, l listing) {
	t.directed, t.closed, t.nodes, t.tiers, t.errors = l.directed, l.closed, l.nodes, l.tiers, l.errors
	for n := range t.tiers {
		tier := &t.tiers[n]
		for _, s := range tier.all {
			w.chain(chain{name: s.name(n), rules: s.rules(n)})
		}
		tier.collect(w, tier.all)
		tier.all = nil
	}
}

// errorChain returns the chain of the ICMP errors about a virtual server's packets, empty if it is not directed.
func errorChain(directed map[ipvs.Key]struct{}, tiers *[numTiers]tier, key ipvs.Key) string {
	if _, is := directed[key]; !is {
		return ""
	}
	if s := tiers[first].of[key]; s != nil {
		return s.name(first)
	}
	return chainStay
}

// keys returns the virtual servers of the known state, also of an incomplete one.
func (t *table) keys() map[ipvs.Key]struct{} {
	keys := maps.Clone(t.directed)
	maps.Copy(keys, t.closed)
	for n := range t.tiers {
		for key := range t.tiers[n].of {
			keys[key] = struct{}{}
		}
	}
	return keys
}

// editNodes changes the set of nodes.
func (t *table) editNodes(w writer, want map[netip.Addr]struct{}) {
	for addr := range want {
		if _, has := t.nodes[addr]; !has {
			w.node(addr, false)
		}
	}
	for addr := range t.nodes {
		if _, wanted := want[addr]; !wanted {
			w.node(addr, true)
		}
	}
	t.nodes = want
}

// edit changes the virtual servers of keys.
func (t *table) edit(w writer, want wanted, keys []ipvs.Key) {
	var contents [numTiers]map[ipvs.Key]content
	for n := range contents {
		contents[n] = make(map[ipvs.Key]content, len(keys))
	}
	for _, key := range keys {
		c := want.virtuals[key]
		_, closed := want.closed[key]
		editSet(w, setClosed, t.closed, key, closed)
		editSet(w, setDirected, t.directed, key, c != nil)
		for n := range contents {
			if c == nil {
				contents[n][key] = newContent(false)
			} else {
				contents[n][key] = c[n]
			}
		}
	}
	var left [numTiers][]*spread
	for n := range t.tiers {
		left[n] = t.tiers[n].edit(w, contents[n])
	}
	t.editErrors(w, keys)
	for n := range t.tiers {
		t.tiers[n].collect(w, left[n])
	}
}

// editSet adds a virtual server to a set, or deletes it.
func editSet(w writer, set string, have map[ipvs.Key]struct{}, key ipvs.Key, wanted bool) {
	if _, has := have[key]; has == wanted {
		return
	}
	w.virtualServer(set, key, !wanted)
	if wanted {
		have[key] = struct{}{}
	} else {
		delete(have, key)
	}
}

// editErrors makes the ICMP errors of the virtual servers follow their packets.
func (t *table) editErrors(w writer, keys []ipvs.Key) {
	for _, key := range keys {
		have, want := t.errors[key], errorChain(t.directed, &t.tiers, key)
		if have == want {
			continue
		}
		if have != "" {
			w.error(key, have, true)
			delete(t.errors, key)
		}
		if want != "" {
			w.error(key, want, false)
			t.errors[key] = want
		}
	}
}

// commit carries out what a writer has collected for the table of a family.
func (d *Driver) commit(ctx context.Context, i int, w writer) error {
	if err := d.run(ctx, i, w.tx); err != nil {
		return err
	}
	for _, batch := range *w.batches {
		if batch.Len() == 0 {
			continue
		}
		if err := d.counted(i, func() error { return d.send(batch) }); err != nil {
			return err
		}
	}
	return d.run(ctx, i, w.after)
}

// run carries out a transaction of nft on the table of a family.
func (d *Driver) run(ctx context.Context, i int, tx *knftables.Transaction) error {
	if tx.NumOperations() == 0 {
		return nil
	}
	return d.counted(i, func() error {
		err := d.nft.Run(ctx, tx)
		if err != nil {
			line, _, _ := strings.Cut(err.Error(), "\n")
			err = errors.New(line)
		}
		return err
	})
}

// counted carries out one transaction on the table of a family. The tables are unknown if it fails, or if another
// program changed them meanwhile.
func (d *Driver) counted(i int, transact func() error) error {
	alone, err := d.watch.Alone(func() (ours nftwatch.Counts, err error) {
		ours[i] = 1
		return ours, transact()
	})
	d.foreign = d.foreign || !alone
	return err
}

// removeTables deletes the tables and the guards of both families, also those of an earlier process.
func (d *Driver) removeTables(ctx context.Context) error {
	var errs []error
	for i, f := range families {
		if !exists(i) {
			continue
		}
		w, guard := d.writer(i), &knftables.Table{Family: f.name, Name: guardTable}
		w.removeTable()
		w.tx.Add(guard)
		w.tx.Delete(guard)
		if err := d.run(ctx, i, w.tx); err != nil {
			errs = append(errs, fmt.Errorf("delete nftables table %s %s: %w", f.name, TableName, err))
		}
	}
	return errors.Join(errs...)
}
