package direct

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
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

// The tiers: to the node of the slot, and to the node that had the slot before.
const (
	first = iota
	second
	numTiers
)

// tierNames are the maps of virtual servers, and the prefixes of the names of spreads.
var tierNames = [numTiers]string{first: "first", second: "second"}

// toSpread is how packets of virtual servers reach the chain of a spread. They return if the slot has no element.
const toSpread = nftbatch.Jump

// spread is a map {slot : gateway} and the chain with its rule. Virtual servers with the same content share it.
type spread struct {
	content
	id   int
	refs int
}

// tier is the known state of one tier in a table.
type tier struct {
	number int
	of     map[ipvs.Key]*spread
	by     map[content]*spread
	// last is the greatest id so far.
	last int
	// spare are spreads without slots and virtual servers, by class. The kernel knows them, so a change that uses one
	// consists of elements only.
	spare map[bool][]*spread
	// all are the spreads of a listing, which may have several with one content, or without virtual servers.
	all []*spread
}

func newTier(number int) tier {
	return tier{
		number: number, of: make(map[ipvs.Key]*spread), by: make(map[content]*spread), spare: make(map[bool][]*spread),
	}
}

// edit changes the virtual servers in want to their content, which may be empty. The state is that after the
// transaction. It returns the spreads to collect.
func (t *tier) edit(w writer, want map[ipvs.Key]content) (left []*spread) {
	keys := slices.SortedFunc(maps.Keys(want), ipvs.Key.Compare)
	t.editInPlace(w, keys, want)
	for _, key := range keys {
		have, c := t.of[key], want[key]
		switch {
		case have != nil && have.content == c, have == nil && c.empty():
			continue
		case have != nil:
			w.virtual(t.number, key, have, true)
			delete(t.of, key)
			have.refs--
			left = append(left, have)
		}
		if c.empty() {
			continue
		}
		s := t.by[c]
		if s == nil {
			s = t.take(w, c)
		}
		s.refs++
		t.of[key] = s
		w.virtual(t.number, key, s, false)
	}
	return left
}

// take returns a spread with a content that none has.
func (t *tier) take(w writer, c content) *spread {
	var s *spread
	if spare := t.spare[c.byClient]; len(spare) > 0 {
		s = spare[len(spare)-1]
		t.spare[c.byClient] = spare[:len(spare)-1]
	} else {
		t.last++
		s = &spread{content: newContent(c.byClient), id: t.last}
		w.spread(t.number, s)
	}
	w.slots(t.number, s, &s.content, &c)
	s.content = c
	t.by[c] = s
	return s
}

// editInPlace edits the spreads whose virtual servers all change to the same new content.
func (t *tier) editInPlace(w writer, keys []ipvs.Key, want map[ipvs.Key]content) {
	moving := make(map[*spread]int)
	for _, key := range keys {
		if s := t.of[key]; s != nil {
			moving[s]++
		}
	}
	target := make(map[*spread]content)
	for _, key := range keys {
		s, c := t.of[key], want[key]
		if s == nil {
			continue
		}
		if earlier, seen := target[s]; seen && earlier != c {
			moving[s] = 0 // not all to the same
		}
		target[s] = c
	}
	for _, key := range keys {
		s := t.of[key]
		if s == nil || moving[s] != s.refs {
			continue
		}
		c := target[s]
		if s.content == c || c.empty() || c.byClient != s.byClient || t.by[c] != nil {
			continue
		}
		w.slots(t.number, s, &s.content, &c)
		t.drop(s)
		s.content = c
		t.by[c] = s
	}
}

// maxSpare is the number of spare spreads of a tier and class.
const maxSpare = 16

// collect makes spreads without a virtual server spare, or deletes them.
func (t *tier) collect(w writer, candidates []*spread) {
	for _, s := range candidates {
		if s.refs != 0 || t.isSpare(s) { // it may be a candidate twice
			continue
		}
		t.drop(s)
		if len(t.spare[s.byClient]) == maxSpare {
			s.refs = -1
			w.removeSpread(t.number, s)
			continue
		}
		empty := newContent(s.byClient)
		w.slots(t.number, s, &s.content, &empty)
		s.content = empty
		t.spare[s.byClient] = append(t.spare[s.byClient], s)
	}
}

func (t *tier) isSpare(s *spread) bool { return slices.Contains(t.spare[s.byClient], s) }

// drop makes the content of a spread available to no further virtual server.
func (t *tier) drop(s *spread) {
	if t.by[s.content] == s {
		delete(t.by, s.content)
	}
}

// writer collects a change of one table: new objects, then elements, then objects to which elements no longer refer.
// The program nft writes the objects, and batches write the elements.
type writer struct {
	tx, after *knftables.Transaction
	batches   *[]*nftbatch.Batch
	family
}

// maxElements limits a batch that fills an empty table: the kernel sends a notification for each element.
const maxElements = 20000

// writer returns a writer for the table of a family.
func (d *Driver) writer(i int) writer {
	w := writer{tx: d.nft.NewTransaction(), after: d.nft.NewTransaction(), batches: new([]*nftbatch.Batch), family: families[i]}
	w.split()
	return w
}

// split begins another batch if the last one is large.
func (w writer) split() {
	if n := len(*w.batches); n == 0 || (*w.batches)[n-1].Len() > maxElements {
		*w.batches = append(*w.batches, nftbatch.New(w.number, TableName))
	}
}

func (w writer) chain(c chain) {
	object := knftables.Chain{Family: w.name, Table: TableName, Name: c.name}
	if c.hook != "" {
		kind, priority := knftables.FilterType, knftables.BaseChainPriority(strconv.Itoa(c.priority))
		object.Type, object.Hook, object.Priority = &kind, &c.hook, &priority
	}
	w.tx.Add(&object)
	w.tx.Flush(&object)
	for _, rule := range c.rules {
		w.tx.Add(&knftables.Rule{Family: w.name, Table: TableName, Chain: c.name, Rule: w.words.Replace(rule)})
	}
}

func (w writer) define(d definition) {
	var flags []knftables.SetFlag
	if d.interval {
		flags = append(flags, knftables.IntervalFlag)
	}
	typ := w.words.Replace(d.typ)
	if d.value == "" {
		w.tx.Add(&knftables.Set{Family: w.name, Table: TableName, Name: d.name, Type: typ, Flags: flags})
		return
	}
	m := &knftables.Map{Family: w.name, Table: TableName, Name: d.name, Flags: flags}
	if d.typeOf != "" {
		m.TypeOf = w.words.Replace(d.typeOf) + " : " + d.value
	} else {
		m.Type = typ + " : " + d.value
	}
	w.tx.Add(m)
}

// removeTable succeeds with or without a table.
func (w writer) removeTable() {
	table := &knftables.Table{Family: w.name, Name: TableName}
	w.tx.Add(table)
	w.tx.Delete(table)
}

// newTable adds the table and its sets.
func (w writer) newTable() {
	w.tx.Add(&knftables.Table{Family: w.name, Name: TableName})
	for _, d := range definitions {
		w.define(d)
	}
}

// element adds or deletes an element.
func (w writer) element(name string, e nftbatch.Element, remove bool) {
	batch := (*w.batches)[len(*w.batches)-1]
	if remove {
		batch.Delete(name, e.Key)
	} else {
		batch.Add(name, e)
	}
}

// spread adds the map and the chain of a spread, without slots.
func (w writer) spread(tier int, s *spread) {
	size := uint64(ipvs.NumSlots)
	w.tx.Add(&knftables.Map{
		Family: w.name, Table: TableName, Name: s.name(tier), Size: &size,
		TypeOf: w.words.Replace("numgen random mod 65536 : IP daddr"), // nft has no other name for the type of a slot
	})
	w.chain(chain{name: s.name(tier), rules: s.rules(tier)})
}

// slots changes the elements of a spread.
func (w writer) slots(tier int, s *spread, from, to *content) {
	name := s.name(tier)
	edit := func(slot int, peer uint16, remove bool) {
		e := nftbatch.Element{Key: nftbatch.Uint32(uint32(slot)), Value: w.gateway(peer).AsSlice()}
		w.element(name, e, remove)
	}
	for slot, peer := range from.peers {
		if peer != none && peer != to.peers[slot] {
			edit(slot, peer, true)
		}
	}
	for slot, peer := range to.peers {
		if peer != none && peer != from.peers[slot] {
			edit(slot, peer, false)
		}
	}
}

// removeSpread deletes the map and the chain of a spread, after the elements that refer to it.
func (w writer) removeSpread(tier int, s *spread) {
	c := knftables.Chain{Family: w.name, Table: TableName, Name: s.name(tier)}
	w.after.Flush(&c)
	w.after.Delete(&c)
	w.after.Delete(&knftables.Map{Family: w.name, Table: TableName, Name: s.name(tier)})
}

// virtual adds or deletes the element that sends a virtual server's packets to a spread.
func (w writer) virtual(tier int, key ipvs.Key, s *spread, remove bool) {
	e := nftbatch.Element{Key: nftbatch.VirtualServer(key), Verdict: toSpread, Chain: s.name(tier)}
	w.element(tierNames[tier], e, remove)
}

// virtualServer adds a virtual server to a set, or deletes it.
func (w writer) virtualServer(set string, key ipvs.Key, remove bool) {
	w.element(set, nftbatch.Element{Key: nftbatch.VirtualServer(key)}, remove)
}

// error adds or deletes the element that sends the ICMP errors about a virtual server's packets to a chain. Its key has
// the same octets as others, and another type.
func (w writer) error(key ipvs.Key, chain string, remove bool) {
	w.element(mapErrors, nftbatch.Element{Key: nftbatch.VirtualServer(key), Verdict: nftbatch.Goto, Chain: chain}, remove)
}

func (w writer) node(addr netip.Addr, remove bool) {
	w.element(setNodes, nftbatch.Element{Key: addr.AsSlice()}, remove)
}

// pods replaces the elements of the sets of cluster-internal sources.
func (w writer) pods(pods ipvs.PodSources) {
	for _, set := range []string{setPods, setPodInterfaces} {
		w.tx.Flush(&knftables.Set{Family: w.name, Table: TableName, Name: set})
	}
	add := func(set, key string) {
		w.tx.Add(&knftables.Element{Family: w.name, Table: TableName, Set: set, Key: []string{key}})
	}
	for _, name := range pods.Interfaces {
		add(setPodInterfaces, strconv.Quote(name))
	}
	for _, p := range pods.Prefixes {
		if p.Addr().Is4() == (w.name == knftables.IPv4Family) {
			add(setPods, p.String())
		}
	}
}
