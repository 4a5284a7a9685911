package returnroute

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// Label is the bit of the conntrack label of connections whose requests arrive on the interface of the return route, or
// through a tunnel. Answers to Pods and to the node itself, whose requests arrive elsewhere, leave as before. No other
// bit is read or changed.
const Label = 74

// chainAnswers has the marks of answers.
const chainAnswers = "answers"

// chain is a chain of the table. Rules contain IP where the families differ.
type chain struct {
	name     string
	kind     knftables.BaseChainType // "": not a base chain
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []string
}

// chains returns the rules of some tables.
func chains(tables []table, tunnels []string) []chain {
	toAnswers := fmt.Sprintf("ct direction reply ct label %d goto %s", Label, chainAnswers)
	var arrive, answers, marks []string
	for _, t := range tables {
		var prefixes, interfaces []string
		for _, p := range t.Prefixes {
			prefixes = append(prefixes, p.Masked().String())
		}
		for _, name := range append([]string{t.Interface}, tunnels...) {
			interfaces = append(interfaces, `"`+name+`"`)
		}
		of := "{ " + strings.Join(prefixes, ", ") + " }"
		arrive = append(arrive, fmt.Sprintf("ct direction original iifname { %s } IP daddr %s ct label set %d", strings.Join(interfaces, ", "), of, Label))
		answers = append(answers, fmt.Sprintf("ct original IP daddr %s meta mark set %#x return", of, t.mark()))
		marks = append(marks, fmt.Sprintf("%#x", t.mark()))
	}
	slices.Sort(marks)
	unmark := fmt.Sprintf("meta mark { %s } meta mark set 0x0", strings.Join(marks, ", "))
	return []chain{
		{name: chainAnswers, rules: answers},
		// After conntrack, before any translation.
		{name: "prerouting", kind: knftables.FilterType, hook: knftables.PreroutingHook, priority: knftables.ManglePriority,
			rules: append(arrive, toAnswers)},
		// Answers of processes on the node. The kernel routes them again if the mark differs.
		{name: "output", kind: knftables.RouteType, hook: knftables.OutputHook, priority: knftables.ManglePriority,
			rules: []string{toAnswers}},
		// The routing has been decided. A device that encapsulates would use the mark for the outer packet.
		{name: "postrouting", kind: knftables.FilterType, hook: knftables.PostroutingHook, priority: knftables.ManglePriority,
			rules: []string{unmark}},
	}
}

// setRules makes the nftables table of a family have the rules of these tables, in one transaction. Without any there
// is no table. It reports whether no other program changed the table.
func (d *Driver) setRules(ctx context.Context, i int, tables []table) (alone bool, err error) {
	f := families[i]
	tx := d.nft.NewTransaction()
	obj := &knftables.Table{Family: f.name, Name: TableName}
	if len(tables) > 0 {
		tx.Add(obj)
	}
	tx.Delete(obj)
	if len(tables) > 0 {
		tx.Add(obj)
		for _, c := range chains(tables, d.tunnels) {
			base := &knftables.Chain{Family: f.name, Table: TableName, Name: c.name}
			if c.kind != "" {
				base.Type, base.Hook, base.Priority = &c.kind, &c.hook, &c.priority
			}
			tx.Add(base)
			for _, rule := range c.rules {
				tx.Add(&knftables.Rule{Family: f.name, Table: TableName, Chain: c.name, Rule: f.words.Replace(rule)})
			}
		}
	}
	alone, err = d.watch.Alone(func() (ours nftwatch.Counts, err error) {
		if err = d.nft.Run(ctx, tx); err == nil {
			ours[i] = 1
		} else if len(tables) == 0 && knftables.IsNotFound(err) {
			err = nil
		}
		return ours, err
	})
	if err != nil {
		return false, fmt.Errorf("write nftables table %s %s: %w", f.name, TableName, err)
	}
	return alone, nil
}
