package direct

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
)

// The sets of a table; its maps are those of tierNames, and one per spread.
const (
	// setDirected {virtual server}: the directed ones, whose packets may come out of a tunnel.
	setDirected = "directed"
	// setClosed {virtual server}: those of them whose packets may not come out of a tunnel yet.
	setClosed = "closed"
	// setNodes {address}: the peers, from which packets of a tunnel are accepted.
	setNodes = "nodes"
	// setPods {prefix} and setPodInterfaces {name, or a prefix of names}: the cluster-internal sources.
	setPods, setPodInterfaces = "pods", "pod-interfaces"
	// mapErrors {virtual server : verdict}: the directed ones, whose packets caused an ICMP error. Those without a spread
	// have the chain chainStay.
	mapErrors, chainStay = "errors", "stay"
)

// hashSeed makes all nodes hash equally. Its value is arbitrary.
const hashSeed = 0x4c42

// key is the destination of a packet.
const key = "IP daddr . meta l4proto . th dport"

// keyType is its type.
const keyType = "ADDR . inet_proto . inet_service"

// errorKey is the source of the packet that caused an ICMP error, which is in the error after 8 octets. A packet with
// options or extension headers is not found.
const errorKey = "ERRORKEY"

// definition is a set or a map; a set has no value. typeOf is given for a type that has no name.
type definition struct {
	name, typ, typeOf, value string
	interval                 bool
	size                     int
}

// definitions are the sets and maps of every table, without those of spreads.
var definitions = []definition{
	{name: setDirected, typ: keyType},
	{name: setClosed, typ: keyType},
	{name: setNodes, typ: "ADDR"},
	{name: setPods, typ: "ADDR", interval: true},
	{name: setPodInterfaces, typ: "ifname", interval: true},
	{name: tierNames[first], typ: keyType, value: "verdict"},
	{name: tierNames[second], typ: keyType, value: "verdict"},
	{name: mapErrors, typ: "integer . integer . integer", typeOf: errorKey, value: "verdict"},
}

// frame is all that the rules depend on.
type frame struct {
	self netip.Addr
	port uint16
	mtu  int
	// devices are the indices of the tunnels, to which a rule refers.
	devices [numTiers]int
}

// chain is a chain with its rules.
type chain struct {
	name     string
	hook     knftables.BaseChainHook // "": not a base chain
	priority int
	rules    []string
}

// inTunnel matches what comes out of a tunnel, notInTunnel the rest. A prefix needs no set of its own in each rule.
const (
	inTunnel    = `iifname "` + devicePrefix + `*"`
	notInTunnel = `iifname != "` + devicePrefix + `*"`
)

// chains returns the chains of a table without those of spreads, in the order of their references.
func (f frame) chains(of family) []chain {
	internal := []string{`iifname "lo" return`, "IP saddr @pods return", "iifname @pod-interfaces return"}
	prerouting := []string{
		// What comes out of a tunnel is never sent on, and must be for a directed virtual server.
		inTunnel + " goto tunneled",
		"ICMPERROR goto icmp-error",
		key + " != @directed return",
	}
	prerouting = append(append(prerouting, internal...), fragmentable(of, key+" vmap @first")...)
	// A segment that opens no connection and belongs to none here. Conntrack has not confirmed its entry yet.
	unknown := []string{
		"ct state != { new, untracked } return",
		"meta l4proto != tcp return",
		"tcp flags & syn != 0x0 return",
		`iifname "` + Device2 + `" return`,
	}
	unknown = append(append(unknown, internal...), key+" vmap @second",
		// The sender's slots are newer than this node's, which sends to the node that has the slot here.
		`iifname "`+Device1+`" `+key+" vmap @first")
	all := []chain{
		{name: chainStay},
		{name: "tunneled", rules: []string{
			key + " @closed drop", key + " @directed return", "ICMPERROR " + errorKey + " vmap @" + mapErrors, "drop",
		}},
		// An error about an answer, from the path to the client, is directed like the client's packets.
		{name: "icmp-error", rules: append(slices.Clone(internal), errorKey+" vmap @"+mapErrors)},
		// After the packet filter (-300), so that a client that is not allowed ends at its first node; before conntrack.
		{name: "prerouting", hook: knftables.PreroutingHook, priority: -290, rules: prerouting},
		{name: "unknown", hook: knftables.PreroutingHook, priority: -190, rules: unknown},
		// Segments to the client do not pass the tunnel, those from the client do. After the translation of the source.
		{name: "postrouting", hook: knftables.PostroutingHook, priority: 150, rules: []string{
			"tcp flags & (syn | ack) == (syn | ack) IP saddr . meta l4proto . th sport @directed " +
				fmt.Sprintf("tcp option maxseg size set %d", f.mtu-of.headers),
		}},
	}
	all = append(all, duplicates(of)...)
	if families[familyOf(f.self)].name == of.name {
		all = append(all, f.outer()...)
	}
	return all
}

// fragmentable returns the rule that duplicates packets, and those that keep an IPv4 packet fragmentable. A duplicate
// always gets DF (nf_dup_ipv4), so the reserved flag marks packets without it, until the rule is past.
func fragmentable(of family, rule string) []string {
	if of.name != knftables.IPv4Family {
		return []string{rule}
	}
	return []string{"ip frag-off 0x0 ip frag-off set 0x8000", rule, "ip frag-off 0x8000 ip frag-off set 0x0"}
}

// outer returns the chains for packets of the tunnels. They are accepted from nodes only, and not tracked: their source
// port differs by flow, and filterTable drops tracked ones. Nothing is sent on to the tunnel of a node: a packet of a
// Pod may get the address of this node.
func (f frame) outer() []chain {
	received := fmt.Sprintf("IP daddr %v udp dport %d IP saddr @nodes", f.self, f.port)
	return []chain{
		{name: "outer-prerouting", hook: knftables.PreroutingHook, priority: -300, rules: []string{received + " notrack"}},
		{name: "outer-input", hook: knftables.InputHook, priority: -300, rules: []string{
			received + " accept", fmt.Sprintf("udp dport %d drop", f.port),
		}},
		{name: "outer-forward", hook: knftables.ForwardHook, priority: -300, rules: []string{
			fmt.Sprintf("udp dport %d IP daddr @nodes drop", f.port),
		}},
		{name: "outer-output", hook: knftables.OutputHook, priority: -300, rules: []string{
			fmt.Sprintf("IP saddr %v udp dport %d IP daddr @nodes notrack", f.self, f.port),
		}},
	}
}

// name returns the name of the chain and of the map.
func (s *spread) name(tier int) string {
	if s.byClient {
		return fmt.Sprintf("%s-client-%d", tierNames[tier], s.id)
	}
	return fmt.Sprintf("%s-%d", tierNames[tier], s.id)
}

// rules returns the rules of the chain. A slot that is not in the map has no peer, so the packet stays. A packet that
// comes out of the first tunnel is sent into the second.
func (s *spread) rules(tier int) []string {
	client, receiver := "IP saddr . th sport", "ERRORADDR . ERRORPORT"
	if s.byClient {
		client, receiver = "IP saddr", "ERRORADDR"
	}
	to := func(client, device string) string {
		return fmt.Sprintf("dup to jhash %s mod %d seed 0x%x map @%s device %q drop",
			client, ipvs.NumSlots, hashSeed, s.name(tier), device)
	}
	if tier == second {
		return []string{to(client, Device2)}
	}
	return []string{
		"meta l4proto ICMP " + notInTunnel + " " + to(receiver, Device1), "meta l4proto ICMP return",
		`iifname "` + Device1 + `" ` + to(client, Device2), to(client, Device1),
	}
}
