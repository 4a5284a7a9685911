package nftlb

import (
	"fmt"
	"net/netip"
	"strconv"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
)

// affinitySize limits the kernel memory for affinity: about 200 octets per client. Beyond it a client is served without
// affinity.
const affinitySize = 1 << 18

// dnatPriority is before the packet filter protects served ports from other programs (-105). A table for internal
// clients precedes one for all traffic, in either order of creation.
var dnatPriority = map[Scope]knftables.BaseChainPriority{AllTraffic: "-110", ClusterInternal: "-115"}

// afterPriority is after every translation of destinations, whatever its priority: the kernel does that at -100.
const afterPriority knftables.BaseChainPriority = "-90"

// inputPriority is after the packet filter (0), which drops packets to a Service that has endpoints only on other
// nodes, and before IPVS (98).
const inputPriority knftables.BaseChainPriority = "10"

// countPriority is before the kernel or another program translates the source of a connection (100): the rest of the nat
// chains then do not receive it.
const countPriority knftables.BaseChainPriority = "90"

// writer adds objects of one family to a transaction.
type writer struct {
	tx      *knftables.Transaction
	table   string
	counted bool
	family
}

func (b *Balancer) writer(tx *knftables.Transaction, family int) writer {
	return writer{tx: tx, table: b.scope.Table(), counted: b.counted, family: families[family]}
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

// newTable replaces the table, whatever exists, by one without virtual servers.
func (w writer) newTable(scope Scope) {
	w.removeTable()
	w.tx.Add(&knftables.Table{Family: w.name, Name: w.table})
	key, real := w.addrType+" . inet_proto . inet_service", w.addrType+" . inet_service"
	size := uint64(affinitySize)
	maps := []knftables.Map{
		{Name: mapVirtuals, Type: key + " : verdict"},
		{Name: mapSticky, Type: key + " : verdict"},
		{
			Name: mapAffinity, Type: fmt.Sprintf("%s . %s : %s", w.addrType, key, real),
			Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}, Size: &size,
		},
	}
	for _, p := range protocols {
		maps = append(maps, knftables.Map{
			Name:   mapReals[p], // nft has no other name for the type of the slot
			TypeOf: fmt.Sprintf("%s daddr . %s dport . numgen random mod 65536 : %[1]s daddr . %[2]s dport", w.name, nftName(p)),
		})
	}
	for _, m := range maps {
		m.Family, m.Table = w.name, w.table
		w.tx.Add(&m)
	}
	w.tx.Add(&knftables.Set{Family: w.name, Table: w.table, Name: setRefused, Type: key})
	w.tx.Add(&knftables.Set{
		Family: w.name, Table: w.table, Name: setPods, Type: w.addrType, Flags: []knftables.SetFlag{knftables.IntervalFlag},
	})
	w.tx.Add(&knftables.Set{
		Family: w.name, Table: w.table, Name: setPodInterfaces, Type: "ifname",
		Flags: []knftables.SetFlag{knftables.IntervalFlag},
	})
	w.baseChains(scope)
	if w.counted {
		w.counters(key)
	}
}

// counters add the sets and chains that count traffic. A nat chain receives the first packet of each connection. Both
// hooks follow the packet filter and every translation of destinations, and each packet passes one of them: "input" if
// it comes from elsewhere and ends on this node.
func (w writer) counters(key string) {
	for _, name := range counterSets {
		w.tx.Add(&knftables.Set{Family: w.name, Table: w.table, Name: name, Type: key + " ; counter"}) // knftables has no field for it
	}
	const elsewhere = "iif != lo "
	count := func(match, set string) (rules []string) {
		for _, p := range protocols {
			rules = append(rules, fmt.Sprintf("meta l4proto %s %sct original %s daddr . meta l4proto . ct original proto-dst @%s",
				nftName(p), match, w.name, set))
		}
		return rules
	}
	w.chain("count-connections", count("", setConnections), nil)
	w.chain("count-packets", append(count("ct direction original ", setIncoming), count("ct direction reply ", setOutgoing)...), nil)
	base := func(kind knftables.BaseChainType, hook knftables.BaseChainHook, match, chain string) {
		priority := countPriority
		w.chain(chain+"-"+string(hook), []string{match + "ct status dnat goto " + chain}, &knftables.Chain{Type: &kind, Hook: &hook, Priority: &priority})
	}
	base(knftables.NATType, knftables.PostroutingHook, "", "count-connections")
	base(knftables.NATType, knftables.InputHook, elsewhere, "count-connections")
	base(knftables.FilterType, knftables.PostroutingHook, "", "count-packets")
	base(knftables.FilterType, knftables.InputHook, elsewhere, "count-packets")
}

// baseChains match the destination of a packet. Packets of the node itself are internal whatever their source, which
// may be a virtual address.
func (w writer) baseChains(scope Scope) {
	key := fmt.Sprintf("%s daddr . meta l4proto . th dport", w.name)
	sources := []string{""}
	if scope == ClusterInternal {
		sources = []string{fmt.Sprintf("%s saddr @%s ", w.name, setPods), fmt.Sprintf("iifname @%s ", setPodInterfaces)}
	}
	from := func(rule string) (rules []string) {
		for _, source := range sources {
			rules = append(rules, source+rule)
		}
		return rules
	}
	choose := fmt.Sprintf("%s vmap @%s", key, mapVirtuals)
	refused := fmt.Sprintf("%s @%s goto %s", key, setRefused, class{}.name())
	var recordAffinity []string
	for _, p := range protocols { // nft determines the size of a port only next to a protocol
		recordAffinity = append(recordAffinity, fmt.Sprintf("ct state new ct status dnat meta l4proto %s "+
			"ct original %s daddr . meta l4proto . ct original proto-dst vmap @%s", nftName(p), w.name, mapSticky))
	}
	w.class(class{})
	base := func(name string, kind knftables.BaseChainType, hook knftables.BaseChainHook, priority knftables.BaseChainPriority, rules ...string) {
		w.chain(name, rules, &knftables.Chain{Type: &kind, Hook: &hook, Priority: &priority})
	}
	base("prerouting", knftables.NATType, knftables.PreroutingHook, dnatPriority[scope], from(choose)...)
	base("output", knftables.NATType, knftables.OutputHook, dnatPriority[scope], choose)
	base("after-prerouting", knftables.FilterType, knftables.PreroutingHook, afterPriority, recordAffinity...)
	base("after-output", knftables.FilterType, knftables.OutputHook, afterPriority, append(recordAffinity, refused)...)
	base("input", knftables.FilterType, knftables.InputHook, inputPriority, from(refused)...)
}

// removeTable succeeds with or without a table.
func (w writer) removeTable() {
	table := &knftables.Table{Family: w.name, Name: w.table}
	w.tx.Add(table)
	w.tx.Delete(table)
}

// class creates the chain of a class. [addAffinityRules] later adds the rules of a class that records affinity.
func (w writer) class(c class) { w.chain(c.name(), c.rules(w.family), nil) }

func (w writer) element(e knftables.Element, remove bool) {
	e.Family, e.Table = w.name, w.table
	if remove {
		w.tx.Delete(&e)
	} else {
		w.tx.Add(&e)
	}
}

// affinityEntry is an element of affinity.
type affinityEntry struct {
	client  netip.Addr
	virtual ipvs.Key
	real    netip.AddrPort
	// timeout and its remainder, in seconds
	timeout, expires uint32
}

// affinity adds an element to affinity with its remaining time.
func (w writer) affinity(r affinityEntry) {
	k := append([]string{r.client.String()}, keyText(r.virtual)...)
	k[len(k)-1] += fmt.Sprintf(" timeout %ds expires %ds", r.timeout, max(1, r.expires)) // knftables has no field for it
	w.element(knftables.Element{Map: mapAffinity, Key: k, Value: realText(r.real)}, false)
}

func (w writer) deleteAffinity(r affinityEntry) {
	w.element(knftables.Element{Map: mapAffinity, Key: append([]string{r.client.String()}, keyText(r.virtual)...)}, true)
}

// deleteClass deletes the chain of a class.
func (w writer) deleteClass(c class) {
	chain := &knftables.Chain{Family: w.name, Table: w.table, Name: c.name()}
	w.tx.Flush(chain)
	w.tx.Delete(chain)
}

// pods replaces the elements of the sets of internal sources.
func (w writer) pods(pods ipvs.PodSources) {
	for _, set := range []string{setPods, setPodInterfaces} {
		w.tx.Flush(&knftables.Set{Family: w.name, Table: w.table, Name: set})
	}
	pods = w.podsOf(pods)
	for _, name := range pods.Interfaces {
		w.element(knftables.Element{Set: setPodInterfaces, Key: []string{strconv.Quote(name)}}, false)
	}
	for _, p := range pods.Prefixes {
		w.element(knftables.Element{Set: setPods, Key: []string{p.String()}}, false)
	}
}
