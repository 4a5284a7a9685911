package nft

import (
	"sigs.k8s.io/knftables"
)

// Label is the bit of the conntrack label that marks connections to a virtual server. A rule outside of this table can
// accept them by it where a policy of DROP would not (Policies). No other bit is read or changed.
const Label = 73

// chain is a chain of the table. The rules contain ADDR, IP and ICMP where the families differ, PROTO where there is
// one rule per protocol.
type chain struct {
	name     string
	kind     knftables.BaseChainType // "": not a base chain
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []string
}

const (
	// key is the destination of a packet.
	key = "IP daddr . meta l4proto . th dport"
	// originalKey is the original destination of a connection, before IPVS or DNAT rewrote it. nft determines the
	// size of the port only next to one protocol.
	originalKey = "meta l4proto PROTO ct original IP daddr . meta l4proto . ct original proto-dst"
)

// resetEstablished resets an established connection without a conntrack entry: its endpoint was here and is deleted
// (docs/design/data-plane.md, "What ends with a reset"). A segment that opens a connection is not answered: another
// node may receive its retransmission. A segment that is invalid in conntrack is not answered either, since it may
// belong to a draining connection.
const resetEstablished = "ct state new tcp flags & (syn | rst) == 0x0 " + key + " @dropped reject with tcp reset"

// keepPriority is before all other translations of destinations, and after the balancer.
const keepPriority knftables.BaseChainPriority = "-105"

// chains are the rules, in the order of their references.
var chains = []chain{
	// Packets to a port of a virtual address: served if allowed, else refused.
	{name: "ranges", rules: []string{
		key + " @restricted " + key + " . IP saddr != @allowed drop",
	}},
	{name: "addressed", rules: []string{
		key + " @served goto ranges",
		"meta l4proto tcp reject with tcp reset",
		"meta l4proto { udp, sctp } reject with ICMP port-unreachable",
	}},

	// Before conntrack, and before the DNAT with which kube-proxy would take over NodePorts at IronLB's addresses
	// (priority -100). Packets of the node to itself have passed "output"; answers to its own clients, whose source is
	// a virtual address, pass here.
	{name: "prerouting", kind: knftables.FilterType, hook: knftables.PreroutingHook, priority: knftables.RawPriority, rules: []string{
		`iifname "lo" return`,
		"IP daddr @addresses jump addressed",
	}},
	// After conntrack, before any DNAT.
	{name: "label", kind: knftables.FilterType, hook: knftables.PreroutingHook, priority: knftables.ManglePriority, rules: []string{
		"ct state new " + key + " @served ct label set " + label,
	}},
	// The same for the node's own packets, only the first of a connection: answers to its own clients have the port of
	// such a client as their destination.
	{name: "output", kind: knftables.FilterType, hook: knftables.OutputHook, priority: knftables.ManglePriority, rules: []string{
		"ct state new IP daddr @addresses jump addressed",
		"ct state new " + key + " @served ct label set " + label,
	}},

	// No other program translates what is served here: a Pod's hostPort, docker -p and kube-proxy's NodePorts are rules
	// for every local address (-100). Translating a destination to itself is final for a connection. The balancer's own
	// translation is earlier (nat, -110).
	{name: "keep-prerouting", kind: knftables.NATType, hook: knftables.PreroutingHook, priority: keepPriority, rules: []string{
		key + " @served dnat to IP daddr",
	}},
	{name: "keep-output", kind: knftables.NATType, hook: knftables.OutputHook, priority: keepPriority, rules: []string{
		key + " @served dnat to IP daddr",
	}},

	// Policy Local and no endpoint here. Internal clients were redirected earlier (nat, -115) and do not match.
	// Connections from before continue until their endpoint is deleted, and then are reset.
	{name: "input", kind: knftables.FilterType, hook: knftables.InputHook, priority: knftables.FilterPriority, rules: []string{
		resetEstablished,
		"ct state != { established, related } " + key + " @dropped drop",
	}},
	// Between that translation, which the kernel does at -100 whatever the priority of a nat chain
	// (nf_nat_register_fn), and the hook of IPVS (-98).
	{name: "output-dropped", kind: knftables.FilterType, hook: knftables.OutputHook, priority: "-99", rules: []string{
		resetEstablished,
		"ct state != { established, related } " + key + " @dropped drop",
	}},

	// Answers unknown to conntrack would leave with the endpoint's own address. Packets to an address of a
	// Service network without a Service are dropped.
	{name: "forward", kind: knftables.FilterType, hook: knftables.ForwardHook, priority: knftables.FilterPriority, rules: []string{
		"IP saddr @endpoints ct state invalid drop",
		"IP daddr @service-networks IP daddr != @addresses drop",
	}},
	{name: "output-unallocated", kind: knftables.FilterType, hook: knftables.OutputHook, priority: knftables.FilterPriority, rules: []string{
		`oifname != "lo" IP daddr @service-networks IP daddr != @addresses drop`,
	}},

	// The client's address is rewritten. The destination is rewritten already, so the rule uses the connection's
	// original one. The third rule is for the node's own clients: the kernel selects a virtual address as their source,
	// which other hosts cannot answer. It checks the connection's source, since answers carry virtual addresses, too.
	// Packets from a Pod end there; the incoming interface is available here since Linux 5.7 (28f8bfd1ac94).
	{name: "postrouting", kind: knftables.NATType, hook: knftables.PostroutingHook, priority: knftables.SNATPriority, rules: []string{
		"IP saddr . IP daddr @hairpin masquerade fully-random",
		originalKey + " @masqueraded masquerade fully-random",
		`ct original IP saddr @addresses oifname != "lo" masquerade fully-random`,
		"IP saddr @pods return",
		"iifname @pod-interfaces return",
		originalKey + " @masqueraded-unless-pod masquerade fully-random",
	}},
}

// dropPing is the rule of chain addressed that makes virtual addresses ignore echo requests.
const dropPing = "ICMP type echo-request drop"
