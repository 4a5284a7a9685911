package returnroute

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// table is a return route with its routing table.
type table struct {
	ipvs.ReturnRoute
	number, index int
}

func (t table) mark() uint32 { return markBase + uint32(t.number-firstTable) }

// assign gives each return route a table: the one that leads there already, or a free one. A table that is to be
// deleted is not free.
func (d *Driver) assign(want []ipvs.ReturnRoute, have state) (tables []table, errs []error) {
	used := make(map[int]bool)
	existing := make(map[route]int)
	for n := range have.foreign {
		used[n] = true
	}
	for r := range have.routes {
		if r.gateway.IsValid() && r.dst.Bits() == 0 {
			used[r.table] = true
			if _, foreign := have.foreign[r.table]; !foreign {
				existing[route{gateway: r.gateway, index: r.index}] = r.table
			}
		}
	}
	for _, r := range want {
		link, err := d.link.LinkByName(r.Interface)
		if err != nil {
			errs = append(errs, fmt.Errorf("find interface %s of the return route by %v: %w", r.Interface, r.Gateway, err))
			continue
		}
		t := table{ReturnRoute: r, index: link.Attrs().Index}
		t.number = existing[route{gateway: r.Gateway, index: t.index}]
		for n := firstTable; t.number == 0 && n < firstTable+maxTables; n++ {
			if !used[n] {
				t.number, used[n] = n, true
			}
		}
		if t.number == 0 {
			errs = append(errs, fmt.Errorf("the return route by %v has no routing table: %d to %d are in use; use fewer gateways",
				t.Gateway, firstTable, firstTable+maxTables-1))
			continue
		}
		if err := loosen(t, link); err != nil {
			errs = append(errs, err)
		}
		d.indexes[t.index] = struct{}{}
		tables = append(tables, t)
	}
	return tables, errs
}

// verify returns an error if a route or rule of the table is missing, or if a rule of another program precedes ours:
// then answers do not leave by the route.
func (d *Driver) verify(f family, t table, have state) error {
	all := wanted(f, []table{t})
	if routes, rules := all.missingRoutes(have), all.missingRules(have); len(routes)+len(rules) > 0 {
		return fmt.Errorf("the return route by %v dev %s lacks %v %v, which are restored", t.Gateway, t.Interface, routes, rules)
	}
	dst, err := t.beyond(f)
	if err != nil {
		return err
	}
	routes, err := d.link.RouteGetWithOptions(dst.AsSlice(), &netlink.RouteGetOptions{Mark: t.mark()})
	if err != nil {
		return fmt.Errorf("get the route by %v dev %s: %w", t.Gateway, t.Interface, err)
	}
	if len(routes) > 0 && routes[0].LinkIndex == t.index && addrOf(routes[0].Gw, f) == t.Gateway {
		return nil
	}
	var before []string
	for _, r := range have.others {
		if r.Priority > 0 && r.Priority < markPriority {
			before = append(before, fmt.Sprintf("%d lookup %d", r.Priority, r.Table))
		}
	}
	if len(before) == 0 {
		return fmt.Errorf("answers do not leave by %v dev %s: another program changed its routes or rules, which are restored",
			t.Gateway, t.Interface)
	}
	return fmt.Errorf("answers do not leave by %v dev %s: a rule of another program is before %d (%s): give it a greater priority, or limit it",
		t.Gateway, t.Interface, markPriority, strings.Join(before, ", "))
}

// beyond returns an address that only the gateway leads to.
func (t table) beyond(f family) (netip.Addr, error) {
next:
	for _, addr := range f.beyond {
		for _, subnet := range t.Subnets {
			if subnet.Contains(addr) {
				continue next
			}
		}
		return addr, nil
	}
	return netip.Addr{}, fmt.Errorf("the networks of %s contain all addresses for documentation", t.Interface)
}

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
