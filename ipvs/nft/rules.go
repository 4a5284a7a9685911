package nft

import (
	"sigs.k8s.io/knftables"
)

// Label is the bit of the conntrack label that marks connections to a virtual server. It lets a rule outside our table
// accept them where a policy of DROP would not (Policies). No other bit is read or changed.
const Label = 73

// chain is a chain of our table. The rules hold ADDR, IP and ICMP where the families differ, PROTO where there is one rule
// for each protocol.
type chain struct {
	name     string
	kind     knftables.BaseChainType // "": not a base chain
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []string
}

const (
	// key looks up what a packet asks for.
	key = "IP daddr . meta l4proto . th dport"
	// originalKey looks up what the connection asked for before its destination was rewritten, by IPVS or by DNAT. nft
	// knows the size of the port only next to one protocol.
	originalKey = "meta l4proto PROTO ct original IP daddr . meta l4proto . ct original proto-dst"
)

// resetEstablished answers a segment of a connection that conntrack has no entry of: its endpoint was here and is gone
// (docs/design/data-plane.md, "What ends with a reset"). What opens one is not answered: it may come again at another
// node. Nor is what conntrack calls invalid, for that may belong to a connection that drains.
const resetEstablished = "ct state new tcp flags & (syn | rst) == 0x0 " + key + " @dropped reject with tcp reset"

// keepPriority is before all others that translate destinations, and after the balancer.
const keepPriority knftables.BaseChainPriority = "-105"

// chains are the rules, in the order that chains refer to one another.
var chains = []chain{
	// What asks for a port of a virtual address: served to those who may, else refused.
	{name: "ranges", rules: []string{
		key + " @restricted " + key + " . IP saddr != @allowed drop",
	}},
	{name: "addressed", rules: []string{
		key + " @served goto ranges",
		"meta l4proto tcp reject with tcp reset",
		"meta l4proto { udp, sctp } reject with ICMP port-unreachable",
	}},

	// Before conntrack, and before the DNAT by which kube-proxy would take NodePorts at our addresses (priority -100). What the
	// node sends to itself has passed "output"; answers to its own clients, whose source is a virtual address, come this way.
	{name: "prerouting", kind: knftables.FilterType, hook: knftables.PreroutingHook, priority: knftables.RawPriority, rules: []string{
		`iifname "lo" return`,
		"IP daddr @addresses jump addressed",
	}},
	// After conntrack, before any DNAT.
	{name: "label", kind: knftables.FilterType, hook: knftables.PreroutingHook, priority: knftables.ManglePriority, rules: []string{
		"ct state new " + key + " @served ct label set " + label,
	}},
	// The same for the node's own packets, the first of a connection only: answers to its own clients have the port of such a
	// client as their destination (ipvs.md 2.3.2).
	{name: "output", kind: knftables.FilterType, hook: knftables.OutputHook, priority: knftables.ManglePriority, rules: []string{
		"ct state new IP daddr @addresses jump addressed",
		"ct state new " + key + " @served ct label set " + label,
	}},

	// Nobody else translates what is served here: a Pod's hostPort, docker -p and kube-proxy's NodePorts are rules for every local address
	// (-100). To translate a destination into itself ends the matter for a connection. What the balancer itself translates comes before
	// (nat, -110).
	{name: "keep-prerouting", kind: knftables.NATType, hook: knftables.PreroutingHook, priority: keepPriority, rules: []string{
		key + " @served dnat to IP daddr",
	}},
	{name: "keep-output", kind: knftables.NATType, hook: knftables.OutputHook, priority: keepPriority, rules: []string{
		key + " @served dnat to IP daddr",
	}},

	// Policy Local and no endpoint here (2.3.6). Clients inside were sent elsewhere before (nat, -115) and are not found here.
	// Connections that began while there was one go on until it is gone, and then are reset.
	{name: "input", kind: knftables.FilterType, hook: knftables.InputHook, priority: knftables.FilterPriority, rules: []string{
		resetEstablished,
		"ct state != { established, related } " + key + " @dropped drop",
	}},
	// Between that, which the kernel does at -100 whatever the priority of a nat chain (nf_nat_register_fn), and the hook of IPVS
	// (-98).
	{name: "output-dropped", kind: knftables.FilterType, hook: knftables.OutputHook, priority: "-99", rules: []string{
		resetEstablished,
		"ct state != { established, related } " + key + " @dropped drop",
	}},

	// Answers that conntrack does not know would leave with the endpoint's own address (2.3.5). An address of a Service
	// network that no Service has is nowhere (2.3.7).
	{name: "forward", kind: knftables.FilterType, hook: knftables.ForwardHook, priority: knftables.FilterPriority, rules: []string{
		"IP saddr @endpoints ct state invalid drop",
		"IP daddr @service-networks IP daddr != @addresses drop",
	}},
	{name: "output-unallocated", kind: knftables.FilterType, hook: knftables.OutputHook, priority: knftables.FilterPriority, rules: []string{
		`oifname != "lo" IP daddr @service-networks IP daddr != @addresses drop`,
	}},

	// The client's address is rewritten (2.2). The destination is rewritten already, so the connection's is looked up.
	// The third rule is for the node's own clients: the kernel chooses a virtual address as their source, which no
	// other host can answer. It asks for the connection's source, for answers carry virtual addresses, too. What comes
	// from a Pod ends there; the interface by which it arrived is known here since Linux 5.7 (28f8bfd1ac94).
	{name: "postrouting", kind: knftables.NATType, hook: knftables.PostroutingHook, priority: knftables.SNATPriority, rules: []string{
		"IP saddr . IP daddr @hairpin masquerade fully-random",
		originalKey + " @masqueraded masquerade fully-random",
		`ct original IP saddr @addresses oifname != "lo" masquerade fully-random`,
		"IP saddr @pods return",
		"iifname @pod-interfaces return",
		originalKey + " @masqueraded-unless-pod masquerade fully-random",
	}},
}

// dropPing is the rule of chain addressed for those who do not want virtual addresses to answer echo requests.
const dropPing = "ICMP type echo-request drop"
