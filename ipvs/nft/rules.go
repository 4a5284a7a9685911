package nft

import (
	"cmp"
	"slices"
	"strconv"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
)

// The sets of the table.
const (
	addressSet    = "addresses"
	servedSet     = "served"
	masqueradeSet = "masqueraded"
)

// protocolNames are the names under which nft lists the protocols.
var protocolNames = map[ipvs.Protocol]string{ipvs.TCP: "tcp", ipvs.UDP: "udp", ipvs.SCTP: "sctp"}

// setTypes are the sets and the types of their elements.
var setTypes = []knftables.Set{
	{Name: addressSet, Type: "ipv4_addr"},
	{Name: servedSet, Type: "ipv4_addr . inet_proto . inet_service"},
	{Name: masqueradeSet, Type: "ipv4_addr . inet_proto . inet_service"},
}

// prerouting refuses ports of a virtual address that have no virtual server. It runs before conntrack and before the
// DNAT of kube-proxy, which would take NodePorts at our addresses (priority -100). What the node sends to itself is
// left alone: answers to its own clients, whose source may be a virtual address, come back that way.
var prerouting = []string{
	`iifname "lo" return`,
	"ip daddr @addresses ip daddr . meta l4proto . th dport @served return",
	"ip daddr @addresses meta l4proto tcp reject with tcp reset",
	"ip daddr @addresses meta l4proto { udp, sctp } reject with icmp port-unreachable",
}

// postrouting rewrites the client's address. IPVS has already rewritten the destination, so it is the original one of
// the connection that is looked up; nft knows the size of a port only next to a protocol, hence three rules. The last
// rule is for the node's own clients: the kernel chooses a virtual address as its own source, which no other host can
// answer. It asks for the connection's source, for answers carry virtual addresses, too.
var postrouting = []string{
	"meta l4proto tcp ct original ip daddr . meta l4proto . ct original proto-dst @masqueraded masquerade fully-random",
	"meta l4proto udp ct original ip daddr . meta l4proto . ct original proto-dst @masqueraded masquerade fully-random",
	"meta l4proto sctp ct original ip daddr . meta l4proto . ct original proto-dst @masqueraded masquerade fully-random",
	`ct original ip saddr @addresses oifname != "lo" masquerade fully-random`,
}

// rebuild returns the transaction that replaces the table, whatever is there.
func (f *Firewall) rebuild(contents []change) *knftables.Transaction {
	tx := f.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{})
	for _, set := range setTypes {
		tx.Add(&set)
	}
	addChain(tx, "prerouting", knftables.FilterType, knftables.PreroutingHook, knftables.RawPriority, prerouting)
	addChain(tx, "postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority, postrouting)
	send(tx, contents)
	return tx
}

func addChain(tx *knftables.Transaction, name string, kind knftables.BaseChainType, hook knftables.BaseChainHook,
	priority knftables.BaseChainPriority, rules []string) {
	tx.Add(&knftables.Chain{Name: name, Type: &kind, Hook: &hook, Priority: &priority})
	for _, rule := range rules {
		tx.Add(&knftables.Rule{Chain: name, Rule: rule})
	}
}

// update returns the transaction that changes only set elements.
func (f *Firewall) update(changes []change) *knftables.Transaction {
	tx := f.nft.NewTransaction()
	send(tx, changes)
	return tx
}

// change is one set element that comes or goes.
type change struct {
	set    string
	key    ipvs.Key // of the set of addresses only the address
	delete bool
}

func send(tx *knftables.Transaction, changes []change) {
	for _, c := range changes {
		element := &knftables.Element{Set: c.set, Key: []string{c.key.Addr.String()}}
		if c.set != addressSet {
			element.Key = append(element.Key, protocolNames[c.key.Protocol], strconv.Itoa(int(c.key.Port)))
		}
		if c.delete {
			tx.Delete(element)
		} else {
			tx.Add(element)
		}
	}
}

// diff returns the changes that make have into want, sorted.
func diff(have, want ipvs.Firewall) []change {
	var changes []change
	changes = append(changes, diffSet(addressSet, addressKeys(have), addressKeys(want))...)
	changes = append(changes, diffSet(servedSet, have.Served, want.Served)...)
	changes = append(changes, diffSet(masqueradeSet, have.Masquerade, want.Masquerade)...)
	return changes
}

func diffSet(set string, have, want map[ipvs.Key]struct{}) []change {
	var changes []change
	for key := range want {
		if _, exists := have[key]; !exists {
			changes = append(changes, change{set: set, key: key})
		}
	}
	if kept := len(want) - len(changes); kept < len(have) {
		for key := range have {
			if _, wanted := want[key]; !wanted {
				changes = append(changes, change{set: set, key: key, delete: true})
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(compareBool(a.delete, b.delete), a.key.Compare(b.key))
	})
	return changes
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func addressKeys(f ipvs.Firewall) map[ipvs.Key]struct{} {
	keys := make(map[ipvs.Key]struct{}, len(f.Addrs))
	for addr := range f.Addrs {
		keys[ipvs.Key{Addr: addr}] = struct{}{}
	}
	return keys
}
