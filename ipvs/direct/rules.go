package direct

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// none is the peer of a slot whose packets stay here.
const none = 1<<16 - 1

// content are the peers to which the packets of each slot are sent, by their index.
type content struct {
	peers    [ipvs.NumSlots]uint16
	byClient bool
}

// newContent returns a content without peers.
func newContent(byClient bool) content {
	c := content{byClient: byClient}
	for slot := range c.peers {
		c.peers[slot] = none
	}
	return c
}

// empty reports whether the packets of every slot stay here.
func (c *content) empty() bool {
	for _, peer := range c.peers {
		if peer != none {
			return false
		}
	}
	return true
}

// peersOf are the peers of one node: a slot of the node itself has none.
type peersOf struct {
	self  int // -1 if the node is not in the list
	nodes []netip.Addr
}

func newPeers(want ipvs.Direct) peersOf {
	p := peersOf{self: -1, nodes: want.Nodes}
	for i, addr := range want.Nodes {
		if addr == want.Self {
			p.self = i
		}
	}
	return p
}

// contents returns the content of each tier for a virtual server: for slots of other nodes, and for its own slots that
// another node had before. It fails if a slot has no node.
func (p peersOf) contents(d ipvs.Directed) (c [numTiers]content, err error) {
	if d.Slots == nil {
		return c, fmt.Errorf("%w: no slots", ipvs.ErrInvalid)
	}
	c[first], c[second] = newContent(d.ByClient), newContent(d.ByClient)
	for slot, node := range d.Slots {
		if err := p.check(node); err != nil {
			return c, err
		}
		if int(node) != p.self {
			c[first].peers[slot] = node
			continue
		}
		if d.Before != nil && d.Before[slot] != node && p.check(d.Before[slot]) == nil { // a deleted node has no connections
			c[second].peers[slot] = d.Before[slot]
		}
	}
	return c, nil
}

func (p peersOf) check(node uint16) error {
	if int(node) >= len(p.nodes) || !p.nodes[node].IsValid() {
		return fmt.Errorf("%w: a slot of node %d, which is not in the list", ipvs.ErrInvalid, node)
	}
	return nil
}

// maxPeers is the number of gateway addresses.
const maxPeers = 1<<14 - 1<<8 - 1

// network4 is the network of the IPv4 gateways. Each tunnel has an address of it, whose route leads to the device. It
// has none of the link-local addresses that clouds and DNS caches use.
var network4 = netip.MustParsePrefix("169.254.64.0/18")

// firstGateway4 are the last two octets of the first gateway.
const firstGateway4 = 65 << 8

// gateway4 and gateway6 return the address of a peer behind either tunnel. It selects a neighbor of the device and is
// never part of a packet, so it means nothing on other nodes.
func gateway4(peer uint16) netip.Addr {
	a := [4]byte{169, 254}
	binary.BigEndian.PutUint16(a[2:], firstGateway4+peer)
	return netip.AddrFrom4(a)
}

func gateway6(peer uint16) netip.Addr {
	a := [16]byte{0: 0xfe, 1: 0x80, 13: 1}
	binary.BigEndian.PutUint16(a[14:], peer)
	return netip.AddrFrom16(a)
}

// peerOf is the reverse of both.
func peerOf(gateway netip.Addr) (peer uint16, ok bool) {
	raw := gateway.AsSlice()
	if len(raw) == 0 {
		return 0, false
	}
	peer = binary.BigEndian.Uint16(raw[len(raw)-2:])
	if gateway.Is4() {
		peer -= firstGateway4
		return peer, peer < maxPeers && gateway4(peer) == gateway
	}
	return peer, peer < maxPeers && gateway6(peer) == gateway
}

// family contains the differences between the tables of IPv4 and IPv6.
type family struct {
	name   knftables.Family
	number byte // the kernel's
	// addrType is nft's type of an address.
	addrType string
	// words replaces ADDR and IP in rules and types, and what concerns ICMP errors: ICMP and ICMPERROR match them,
	// ERRORKEY, ERRORADDR and ERRORPORT are the source (address, protocol, port) and the destination of the packet in
	// one, whose header follows 8 octets of ICMP.
	words *strings.Replacer
	// headers are the lengths of the network and the TCP header, and vxlan is that of all headers of a tunnel.
	headers, vxlan int
	gateway        func(peer uint16) netip.Addr
}

// families have the indices of package nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {
		name: knftables.IPv4Family, number: unix.NFPROTO_IPV4, addrType: "ipv4_addr", words: strings.NewReplacer(
			"ICMPERROR", "icmp type { destination-unreachable, time-exceeded, parameter-problem }", "ICMP", "icmp",
			"ERRORKEY", "@th,160,32 . @th,136,8 . @th,224,16", "ERRORADDR", "@th,192,32", "ERRORPORT", "@th,240,16",
			"ADDR", "ipv4_addr", "IP", "ip",
		),
		headers: 20 + 20, vxlan: 20 + 8 + 8 + 14, gateway: gateway4,
	},
	nftwatch.IP6: {
		name: knftables.IPv6Family, number: unix.NFPROTO_IPV6, addrType: "ipv6_addr", words: strings.NewReplacer(
			"ICMPERROR", "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
			"ICMP", "ipv6-icmp",
			"ERRORKEY", "@th,128,128 . @th,112,8 . @th,384,16", "ERRORADDR", "@th,256,128", "ERRORPORT", "@th,400,16",
			"ADDR", "ipv6_addr", "IP", "ip6",
		),
		headers: 40 + 20, vxlan: 40 + 8 + 8 + 14, gateway: gateway6,
	},
}

// familyOf returns the index of an address's family.
func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return nftwatch.IP
	}
	return nftwatch.IP6
}

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

// A duplicate passes the output hook with the addresses and ports of the client's packet (nf_dup_ipv4, ip_local_out).
// There the packet filter would drop it on a node without endpoints (at -99), IPVS would forward it to an endpoint of
// this node or refuse it (ip_vs_in_hook, -98), and ipvs/nftlb would refuse it (-90). So until then it has another
// protocol, for which there is no virtual server. Its header checksum stays that of its own.
const hiddenFrom, hiddenUntil = -300, -85

// hidden are the values that replace a protocol (RFC 3692 and unassigned ones). No host receives them.
var hidden = []struct{ protocol, value int }{{6, 253}, {17, 254}, {132, 252}}

// hiddenHeaders are those that replace the first extension header of IPv6: hop-by-hop options, routing, destination
// options.
var hiddenHeaders = []struct{ protocol, value int }{{0, 251}, {43, 250}, {60, 249}}

// notDuplicate matches what does not leave through a tunnel.
const notDuplicate = `oifname != "` + devicePrefix + `*" return`

// duplicates returns the chains that only duplicates pass.
func duplicates(of family) []chain {
	hide, show := []string{notDuplicate}, []string{notDuplicate}
	field, all := "@nh,72,8", hidden
	if of.name == knftables.IPv4Family {
		hide = append(hide, restoreFlags)
	} else {
		field, all = "@nh,48,8", append(all[:len(all):len(all)], hiddenHeaders...)
	}
	for _, h := range all { // nft updates the checksum of a named field
		hide = append(hide, fmt.Sprintf("%[1]s %[2]d %[1]s set %[3]d return", field, h.protocol, h.value))
		show = append(show, fmt.Sprintf("%[1]s %[2]d %[1]s set %[3]d return", field, h.value, h.protocol))
	}
	return []chain{
		{name: "output", hook: knftables.OutputHook, priority: hiddenFrom, rules: hide},
		{name: "output-restore", hook: knftables.OutputHook, priority: hiddenUntil, rules: show},
	}
}

// restoreFlags removes the mark of fragmentable, and DF.
const restoreFlags = `ip frag-off 0xc000 ip frag-off set 0x0`
