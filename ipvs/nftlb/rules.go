package nftlb

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
)

// The sets and maps of a table.
const (
	// mapVirtuals {virtual server : the chain of its class}, its settings as comment.
	mapVirtuals = "virtuals"
	// mapReals {virtual server, slot : real server}, weight and forwarding method as comment.
	mapReals = "reals"
	// mapAffinity {client, virtual server : real server}: the memory of persistence, which the rules write.
	mapAffinity = "affinity"
	// mapSticky {virtual server : the chain that remembers}, only of persistent ones.
	mapSticky = "sticky"
	// setPods {prefix}: the sources that are inside.
	setPods = "pods"
)

// affinitySize bounds the memory that clients can take: about 200 octets each. Beyond it a client is served and not remembered.
const affinitySize = 1 << 18

// dnatPriority is before the DNAT of kube-proxy (-100), which would take what it knows of the same addresses.
const dnatPriority knftables.BaseChainPriority = "-110"

// afterPriority is after all translation of destinations, whatever its priority: the kernel does that at -100.
const afterPriority knftables.BaseChainPriority = "-90"

// writer puts objects of one family into a transaction.
type writer struct {
	tx    *knftables.Transaction
	table string
	family
}

func (w writer) chain(name string, rules []string, base *knftables.Chain) {
	chain := knftables.Chain{Family: w.name, Table: w.table, Name: name}
	if base != nil {
		chain.Type, chain.Hook, chain.Priority = base.Type, base.Hook, base.Priority
	}
	w.tx.Add(&chain)
	w.tx.Flush(&chain)
	for _, rule := range rules {
		w.tx.Add(&knftables.Rule{Family: w.name, Table: w.table, Chain: name, Rule: rule})
	}
}

// newTable replaces the table, whatever is there, by one without virtual servers.
func (w writer) newTable(scope Scope) {
	w.removeTable()
	w.tx.Add(&knftables.Table{Family: w.name, Name: w.table})
	key := fmt.Sprintf("%s daddr . meta l4proto . tcp dport", w.name)
	real := fmt.Sprintf("%s daddr . tcp dport", w.name)
	typeOfKey := w.addrType + " . inet_proto . inet_service"
	size := uint64(affinitySize)
	for _, m := range []knftables.Map{
		{Name: mapVirtuals, Type: typeOfKey + " : verdict"},
		{Name: mapSticky, Type: typeOfKey + " : verdict"},
		// nft has no other name for the type of the slot
		{Name: mapReals, TypeOf: key + " . numgen random mod 65536 : " + real},
		{
			Name: mapAffinity, TypeOf: fmt.Sprintf("%s saddr . %s : %s", w.name, key, real),
			Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}, Size: &size,
		},
	} {
		m.Family, m.Table = w.name, w.table
		w.tx.Add(&m)
	}
	w.tx.Add(&knftables.Set{
		Family: w.name, Table: w.table, Name: setPods, Type: w.addrType, Flags: []knftables.SetFlag{knftables.IntervalFlag},
	})
	w.baseChains(scope)
}

// baseChains look up where a packet goes. What the node itself sends is inside whatever its source, which may be a virtual address.
func (w writer) baseChains(scope Scope) {
	rule := fmt.Sprintf("%s daddr . meta l4proto . th dport vmap @%s", w.name, mapVirtuals)
	var after []string
	for _, protocol := range []string{"tcp", "udp", "sctp"} { // nft knows the size of a port only next to a protocol
		after = append(after, fmt.Sprintf("ct state new ct status dnat meta l4proto %s "+
			"ct original %s daddr . meta l4proto . ct original proto-dst vmap @%s", protocol, w.name, mapSticky))
	}
	filter, nat := knftables.FilterType, knftables.NATType
	for _, hook := range []knftables.BaseChainHook{knftables.OutputHook, knftables.PreroutingHook} {
		choose := rule
		if scope == Inside && hook == knftables.PreroutingHook {
			choose = fmt.Sprintf("%s saddr @%s %s", w.name, setPods, rule)
		}
		before, behind := dnatPriority, afterPriority
		w.chain(string(hook), []string{choose}, &knftables.Chain{Type: &nat, Hook: &hook, Priority: &before})
		w.chain("after-"+string(hook), after, &knftables.Chain{Type: &filter, Hook: &hook, Priority: &behind})
	}
}

// removeTable succeeds whether there is a table or not.
func (w writer) removeTable() {
	table := &knftables.Table{Family: w.name, Name: w.table}
	w.tx.Add(table)
	w.tx.Delete(table)
}

// class makes the chain of a class. The rules of one that remembers come later, by [addRemembering].
func (w writer) class(c class) { w.chain(c.name(), c.rules(w.family), nil) }

func (w writer) element(e knftables.Element, remove bool) {
	e.Family, e.Table = w.name, w.table
	if remove {
		w.tx.Delete(&e)
	} else {
		w.tx.Add(&e)
	}
}

// virtual changes the elements of one virtual server; either may be nil.
func (w writer) virtual(key ipvs.Key, have, want *virtual) {
	k := keyText(key)
	if have == nil {
		have = &virtual{}
	}
	if want == nil {
		want = &virtual{}
	}
	w.verdict(mapVirtuals, k, have.class().name(), want.class().name(), have.Settings, want.Settings)
	w.verdict(mapSticky, k, have.memory().name(), want.memory().name(), have.persistent(), want.persistent())
	w.slots(k, have, want)
}

// verdict changes the element that says to what chain the packets of a virtual server go. The comment has the settings, and is
// empty where there is no element.
func (w writer) verdict(name string, k []string, had, wanted string, have, want ipvs.Settings) {
	if had == wanted && have == want {
		return
	}
	if have.Scheduler != "" {
		w.element(knftables.Element{Map: name, Key: k}, true)
	}
	if want.Scheduler != "" {
		comment := want.String()
		w.element(knftables.Element{Map: name, Key: k, Value: []string{"goto " + wanted}, Comment: &comment}, false)
	}
}

func (w writer) slots(k []string, have, want *virtual) {
	slot := func(n uint32) []string { return append(k[:len(k):len(k)], fmt.Sprint(n)) }
	same := func(n uint32) bool {
		h, had := have.layout.at[n]
		wanted, is := want.layout.at[n]
		return had && is && h == wanted && have.RealServers[h] == want.RealServers[h]
	}
	for n := range have.layout.at {
		if !same(n) {
			w.element(knftables.Element{Map: mapReals, Key: slot(n)}, true)
		}
	}
	for n, real := range want.layout.at {
		if !same(n) {
			comment := want.RealServers[real].String()
			w.element(knftables.Element{Map: mapReals, Key: slot(n), Value: realText(real), Comment: &comment}, false)
		}
	}
}

// remembered puts an element into affinity with what is left of its time.
func (w writer) remembered(r remembered) {
	k := append([]string{r.client.String()}, keyText(r.virtual)...)
	k[len(k)-1] += r.lifetime // knftables has no field for it
	w.element(knftables.Element{Map: mapAffinity, Key: k, Value: realText(r.real)}, false)
}

func (w writer) forgotten(r remembered) {
	w.element(knftables.Element{Map: mapAffinity, Key: append([]string{r.client.String()}, keyText(r.virtual)...)}, true)
}

// pods replaces the elements of the set of Pods.
func (w writer) pods(prefixes []netip.Prefix) {
	w.tx.Flush(&knftables.Set{Family: w.name, Table: w.table, Name: setPods})
	for _, p := range prefixes {
		if p.Addr().Is4() == (w.name == knftables.IPv4Family) {
			w.element(knftables.Element{Set: setPods, Key: []string{p.String()}}, false)
		}
	}
}

// reduce returns the prefixes masked, without those inside another: elements of a set may not overlap.
func reduce(prefixes []netip.Prefix) []netip.Prefix {
	var reduced []netip.Prefix
next:
	for i, p := range prefixes {
		for j, q := range prefixes {
			covers := q.Addr().Is4() == p.Addr().Is4() && q.Masked().Contains(p.Addr()) && q.Bits() <= p.Bits()
			if covers && (q.Bits() < p.Bits() || j < i) {
				continue next
			}
		}
		reduced = append(reduced, p.Masked())
	}
	return reduced
}
