package nft

import (
	"bytes"
	"net/netip"
	"regexp"
	"strconv"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// label is Label in nft's notation.
var label = strconv.Itoa(Label)

// protocolNames are nft's names of the protocols.
var protocolNames = map[ipvs.Protocol]string{ipvs.TCP: "tcp", ipvs.UDP: "udp", ipvs.SCTP: "sctp"}

// shape is the structure of a set's elements.
type shape uint8

const (
	address    shape = iota + 1
	pair             // the address twice
	server           // address, protocol, port
	prefix           // disjoint prefixes
	serverFrom       // address, protocol, port, prefix; the prefixes of one server are disjoint
	incoming         // an interface name, or a prefix of interface names
)

// shapes are the shapes of the sets; the name of a set is that of the ipvs.Set.
var shapes = [ipvs.NumSets]shape{
	ipvs.Addresses: address, ipvs.Served: server, ipvs.Masqueraded: server, ipvs.MasqueradedUnlessPod: server, ipvs.Pods: prefix,
	ipvs.Restricted: server, ipvs.Allowed: serverFrom, ipvs.Dropped: server, ipvs.Hairpin: pair, ipvs.Endpoints: address,
	ipvs.ServiceNetworks: prefix, ipvs.PodInterfaces: incoming,
}

// shapeOf returns the shape of a set, 0 for a set that does not exist.
func shapeOf(s ipvs.Set) shape {
	if int(s) < len(shapes) {
		return shapes[s]
	}
	return 0
}

// types are the types of the elements, and whether they are intervals.
var types = map[shape]struct {
	text     string
	interval bool
}{
	address:    {text: "ADDR"},
	pair:       {text: "ADDR . ADDR"},
	server:     {text: "ADDR . inet_proto . inet_service"},
	prefix:     {text: "ADDR", interval: true},
	serverFrom: {text: "ADDR . inet_proto . inet_service . ADDR", interval: true},
	incoming:   {text: "ifname", interval: true}, // prefixes of names require intervals
}

// setOf returns the definition of a set in a family.
func setOf(s ipvs.Set, f family) *knftables.Set {
	t := types[shapes[s]]
	set := &knftables.Set{Name: s.String(), Type: f.words.Replace(t.text)}
	if t.interval {
		set.Flags = []knftables.SetFlag{knftables.IntervalFlag}
	}
	return set
}

// plain reports whether the elements of a set are written and listed over netlink. Those of intervals are left to nft,
// which gives them one of several forms.
func plain(s ipvs.Set) bool { return shapes[s] != 0 && !types[shapes[s]].interval }

// octets returns an element of a plain set in the form of the kernel.
func octets(e ipvs.Element) []byte {
	switch addr := e.Key.Addr.AsSlice(); shapes[e.Set] {
	case address:
		return addr
	case pair:
		return nftbatch.Concat(addr, addr)
	}
	return nftbatch.VirtualServer(e.Key)
}

// parseOctets is the reverse of octets.
func parseOctets(f family, s ipvs.Set, key []byte) (ipvs.Element, bool) {
	e, ok := ipvs.Element{Set: s}, false
	switch shapes[s] {
	case address:
		e.Key.Addr, ok = netip.AddrFromSlice(key)
	case pair:
		half := len(key) / 2
		e.Key.Addr, ok = netip.AddrFromSlice(key[:half])
		ok = ok && bytes.Equal(key[:half], key[half:])
	case server:
		e.Key, ok = nftbatch.ParseVirtualServer(key)
	}
	return e, ok && e.Key.Addr.Is4() == f.everything.Addr().Is4() && validate(e) == "" && bytes.Equal(octets(e), key)
}

// fields returns an element in nft's notation.
func fields(e ipvs.Element) []string {
	switch shapes[e.Set] {
	case address:
		return []string{e.Key.Addr.String()}
	case pair:
		return []string{e.Key.Addr.String(), e.Key.Addr.String()}
	case prefix:
		return []string{e.Prefix().String()}
	case incoming:
		return []string{strconv.Quote(e.Interface())}
	}
	text := []string{e.Key.Addr.String(), protocolNames[e.Key.Protocol], strconv.Itoa(int(e.Key.Port))}
	if shapes[e.Set] == serverFrom {
		text = append(text, e.Prefix().String())
	}
	return text
}

// validate returns why an element is invalid, "" if it is valid.
func validate(e ipvs.Element) string {
	shape := shapeOf(e.Set)
	hasAddr, hasServer, hasPrefix := e.Key.Addr.IsValid(), e.Key.Port != 0 || e.Key.Protocol != 0, e.Prefix().IsValid()
	switch {
	case shape == 0:
		return "there is no such set"
	case hasAddr != (shape != prefix && shape != incoming):
		return "an address is missing or too much"
	case hasServer != (shape == server || shape == serverFrom):
		return "a protocol and port are missing or too much"
	case hasPrefix != (shape == prefix || shape == serverFrom || shape == incoming):
		return "a prefix is missing or too much"
	case (shape == incoming) != (e.Interface() != "") || shape == incoming && !interfacePattern.MatchString(e.Interface()):
		return "an interface is missing, too much, or no name that nft takes"
	case shape == incoming && e.Prefix().Bits() != 0:
		return "the prefix is not everything of a family"
	case hasServer && (protocolNames[e.Key.Protocol] == "" || e.Key.Port == 0):
		return "not a port of TCP, UDP or SCTP"
	case hasAddr && unfit(e.Key.Addr) || hasPrefix && unfit(e.Prefix().Addr()):
		return "an address is IPv4 mapped to IPv6, or has a zone"
	case hasPrefix && e.Prefix() != e.Prefix().Masked():
		return "the prefix has bits beyond its length"
	case hasAddr && hasPrefix && e.Key.Addr.Is4() != e.Prefix().Addr().Is4():
		return "the address and the prefix are of different families"
	}
	return ""
}

// interfacePattern is the syntax that nft accepts: at most 15 octets with the "*" (IFNAMSIZ).
var interfacePattern = regexp.MustCompile(`^([A-Za-z0-9_.@-]{1,15}|[A-Za-z0-9_.@-]{1,14}\*)$`)

func unfit(addr netip.Addr) bool { return addr.Is4In6() || addr.Zone() != "" }
