package nft

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftopen"
)

// table is IronLB's table of one family.
type table struct {
	family family
	// nft is nil if this kernel has no nftables of the family; absent is the error.
	nft    knftables.Interface
	absent error

	// built reports whether the kernel holds the content of have; without any element there is no table.
	built bool
	// spoiled reports a foreign change of the table since it was built. suspect reports a possible one since the table
	// was last listed.
	spoiled, suspect bool
	// have is the wanted content of the table, and groups are its prefixes.
	have   ipvs.Filter
	groups groups
	// definition is the remaining definition as listed when the table was built, with a rule for ping or without. It is
	// trusted unless another program may have changed the table meanwhile, or a repair of the table failed.
	definition    string
	ping, trusted bool
}

// errNotBuilt reports that the table must be built first.
var errNotBuilt = errors.New("the table was not built, or was changed by another program, since: build it")

func openTable(f family) *table {
	t := &table{family: f}
	t.nft, t.absent = nftopen.Open(f.nft, TableName)
	if t.absent != nil {
		t.nft = nil
	}
	return t
}

func (t *table) String() string { return fmt.Sprintf("nftables table %s %s", t.family.nft, TableName) }

// usable returns why elements of the family cannot be applied.
func (t *table) usable() error {
	if t.nft == nil {
		return fmt.Errorf("this kernel has no nftables for family %s: %w", t.family.nft, t.absent)
	}
	return nil
}

// removal returns the transaction that deletes the table, whatever exists.
func (t *table) removal() *knftables.Transaction {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{}) // so that deleting it cannot fail
	tx.Delete(&knftables.Table{})
	return tx
}

// replacement returns the transaction that replaces the table, whatever exists, by one with these elements.
func (t *table) replacement(elements iter.Seq[ipvs.Element], ping bool) *knftables.Transaction {
	tx := t.removal()
	tx.Add(&knftables.Table{})
	for s := range ipvs.NumSets {
		if shapes[s] != 0 {
			tx.Add(setOf(s, t.family))
		}
	}
	for _, c := range chains {
		c.add(tx, t.family)
		if c.name == "addressed" && !ping {
			tx.Add(&knftables.Rule{Chain: c.name, Rule: t.family.words.Replace(dropPing)})
		}
	}
	add(tx, elements)
	return tx
}

// add adds elements.
func add(tx *knftables.Transaction, elements iter.Seq[ipvs.Element]) {
	for e := range elements {
		tx.Add(&knftables.Element{Set: e.Set.String(), Key: fields(e)})
	}
}

// add adds the chain and its rules to the transaction.
func (c chain) add(tx *knftables.Transaction, f family) {
	definition := &knftables.Chain{Name: c.name}
	if c.kind != "" {
		definition.Type, definition.Hook, definition.Priority = &c.kind, &c.hook, &c.priority
	}
	tx.Add(definition)
	for _, rule := range c.rules {
		rule = f.words.Replace(rule)
		if !strings.Contains(rule, "PROTO") {
			tx.Add(&knftables.Rule{Chain: c.name, Rule: rule})
			continue
		}
		for _, protocol := range []ipvs.Protocol{ipvs.TCP, ipvs.UDP, ipvs.SCTP} {
			tx.Add(&knftables.Rule{Chain: c.name, Rule: strings.ReplaceAll(rule, "PROTO", protocolNames[protocol])})
		}
	}
}

// edit returns the transaction that changes only elements.
func (t *table) edit(changes []ipvs.FilterChange) *knftables.Transaction {
	tx := t.nft.NewTransaction()
	rewritten := map[ipvs.Set]bool{}
	for _, c := range changes {
		element := &knftables.Element{Set: c.Element.Set.String(), Key: fields(c.Element)}
		switch {
		case shapes[c.Element.Set] == incoming:
			rewritten[c.Element.Set] = true
		case c.Delete:
			tx.Delete(element)
		default:
			tx.Add(element)
		}
	}
	for set := range rewritten {
		t.rewrite(tx, set, changes)
	}
	return tx
}

// rewrite replaces all elements of a set by those after the changes: nft 1.0.6 lists a prefix of names as an element,
// but cannot delete it.
func (t *table) rewrite(tx *knftables.Transaction, set ipvs.Set, changes []ipvs.FilterChange) {
	after := ipvs.Filter{}
	for e := range of(t.have, set) {
		after[e] = struct{}{}
	}
	for _, c := range changes {
		switch {
		case c.Element.Set != set:
		case c.Delete:
			delete(after, c.Element)
		default:
			after[c.Element] = struct{}{}
		}
	}
	replaceSet(tx, set, after)
}

// replaceSet replaces all elements of a set by those of the filter.
func replaceSet(tx *knftables.Transaction, set ipvs.Set, f ipvs.Filter) {
	tx.Flush(&knftables.Set{Name: set.String()})
	add(tx, of(f, set))
}

// of yields the elements of a set.
func of(f ipvs.Filter, set ipvs.Set) iter.Seq[ipvs.Element] {
	return func(yield func(ipvs.Element) bool) {
		for e := range f {
			if e.Set == set && !yield(e) {
				return
			}
		}
	}
}

// missing returns the changes that are not in place yet.
func (t *table) missing(changes []ipvs.FilterChange) []ipvs.FilterChange {
	var out []ipvs.FilterChange
	for _, c := range changes {
		if _, there := t.have[c.Element]; there == c.Delete {
			out = append(out, c)
		}
	}
	return out
}

// record records changes that the kernel has accepted; copying the full filter would cost more than the change.
func (t *table) record(changes []ipvs.FilterChange) {
	for _, c := range changes {
		if c.Delete {
			delete(t.have, c.Element)
		} else {
			t.have[c.Element] = struct{}{}
		}
	}
}

// intact lists the kernel's table and reports whether it is as built.
func (t *table) intact(ctx context.Context) (bool, error) {
	if t.nft == nil {
		return true, nil
	}
	now, err := definition(t.family)
	if err != nil || now != t.definition {
		return false, err
	}
	have, err := list(ctx, t.family)
	if err != nil {
		return false, err
	}
	want, _ := reduce(t.have)
	return !have.foreign() && maps.Equal(have.elements, want), nil
}
