package direct

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
)

// writer adds objects of one table to a transaction.
type writer struct {
	tx *knftables.Transaction
	family
	// count is the number of elements.
	count *int
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

func (w writer) element(e knftables.Element, remove bool) {
	e.Family, e.Table = w.name, TableName
	*w.count++
	if remove {
		w.tx.Delete(&e)
	} else {
		w.tx.Add(&e)
	}
}

// spread adds the map and the chain of a spread.
func (w writer) spread(tier int, s *spread) {
	size := uint64(ipvs.NumSlots)
	w.tx.Add(&knftables.Map{
		Family: w.name, Table: TableName, Name: s.name(tier), Size: &size,
		TypeOf: w.words.Replace("numgen random mod 65536 : IP daddr"), // nft has no other name for the type of a slot
	})
	w.chain(chain{name: s.name(tier), rules: s.rules(tier, w.family)})
	w.slots(tier, s, newContent(false), s.content)
}

// slots changes the elements of a spread by one command of nft each to delete and to add, which takes a third of the
// time of one for each element. knftables has no object for it, so the key or value of the first includes the others.
func (w writer) slots(tier int, s *spread, from, to content) {
	var deleted, added []string
	for slot, peer := range from.peers {
		if peer == to.peers[slot] {
			continue
		}
		if peer != none {
			deleted = append(deleted, strconv.Itoa(slot))
		}
		if to.peers[slot] != none {
			added = append(added, fmt.Sprintf("%d : %v", slot, w.gateway(to.peers[slot])))
		}
	}
	if len(deleted) > 0 {
		w.element(knftables.Element{Map: s.name(tier), Key: []string{strings.Join(deleted, ", ")}}, true)
	}
	if len(added) > 0 {
		key, value, _ := strings.Cut(strings.Join(added, ", "), " : ")
		w.element(knftables.Element{Map: s.name(tier), Key: []string{key}, Value: []string{value}}, false)
	}
	*w.count += len(deleted) + len(added)
}

func (w writer) removeSpread(tier int, s *spread) {
	c := knftables.Chain{Family: w.name, Table: TableName, Name: s.name(tier)}
	w.tx.Flush(&c)
	w.tx.Delete(&c)
	w.tx.Delete(&knftables.Map{Family: w.name, Table: TableName, Name: s.name(tier)})
}

// virtual adds or deletes the element that sends a virtual server's packets to a spread.
func (w writer) virtual(tier int, key ipvs.Key, s *spread, remove bool) {
	w.element(knftables.Element{Map: tierNames[tier], Key: keyText(key), Value: []string{verdicts[tier] + " " + s.name(tier)}}, remove)
}

// keyText returns a virtual server as the parts of an element's key. The protocol is a number: a small image has no
// names.
func keyText(key ipvs.Key) []string {
	return []string{key.Addr.String(), strconv.Itoa(int(key.Protocol)), strconv.Itoa(int(key.Port))}
}

func (w writer) directed(key ipvs.Key, remove bool) {
	w.element(knftables.Element{Set: setDirected, Key: keyText(key)}, remove)
}

// error adds or deletes the element that sends the ICMP errors about a virtual server's packets to a chain.
func (w writer) error(key ipvs.Key, chain string, remove bool) {
	text := keyText(key)
	text[0] = fmt.Sprintf("0x%x", key.Addr.AsSlice())
	w.element(knftables.Element{Map: mapErrors, Key: text, Value: []string{"goto " + chain}}, remove)
}

func (w writer) node(addr netip.Addr, remove bool) {
	w.element(knftables.Element{Set: setNodes, Key: []string{addr.String()}}, remove)
}

// pods replaces the elements of the sets of cluster-internal sources.
func (w writer) pods(pods ipvs.PodSources) {
	for _, set := range []string{setPods, setPodInterfaces} {
		w.tx.Flush(&knftables.Set{Family: w.name, Table: TableName, Name: set})
	}
	for _, name := range pods.Interfaces {
		w.element(knftables.Element{Set: setPodInterfaces, Key: []string{strconv.Quote(name)}}, false)
	}
	for _, p := range pods.Prefixes {
		if p.Addr().Is4() == (w.name == knftables.IPv4Family) {
			w.element(knftables.Element{Set: setPods, Key: []string{p.String()}}, false)
		}
	}
}
