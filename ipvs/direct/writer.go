package direct

import (
	"net/netip"
	"strconv"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

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
