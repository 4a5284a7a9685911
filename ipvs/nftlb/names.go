package nftlb

import (
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// The sets and maps of a table.
const (
	// mapVirtuals {virtual server : the chain of its class}, its settings as comment.
	mapVirtuals = "virtuals"
	// mapAffinity {client, virtual server : real server}: the records of persistence, written by the rules.
	mapAffinity = "affinity"
	// mapSticky {virtual server : the chain that records affinity}, only of persistent ones.
	mapSticky = "sticky"
	// setRefused {virtual server}: those without slots.
	setRefused = "refused"
	// setPods {prefix}: the cluster-internal sources.
	setPods = "pods"
	// setPodInterfaces {name, or a prefix of names}: the interfaces on which Pods' packets arrive.
	setPodInterfaces = "pod-interfaces"
)

// mapReals {virtual address, port, slot : real server}, weight and forwarding method as comment, per protocol: nft
// restricts a translation by a map to the protocol in the map's type.
var mapReals = map[ipvs.Protocol]string{ipvs.TCP: "reals-tcp", ipvs.UDP: "reals-udp", ipvs.SCTP: "reals-sctp"}

var protocols = []ipvs.Protocol{ipvs.TCP, ipvs.UDP, ipvs.SCTP}

// protocolOf is the reverse of mapReals.
var protocolOf = func() map[string]ipvs.Protocol {
	reverse := make(map[string]ipvs.Protocol)
	for p, name := range mapReals {
		reverse[name] = p
	}
	return reverse
}()

// elementSets are the sets and maps of virtual servers.
var elementSets = []string{
	mapVirtuals, mapReals[ipvs.TCP], mapReals[ipvs.UDP], mapReals[ipvs.SCTP], mapSticky, setRefused,
}

// The sets {virtual server} of a balancer that counts traffic, with a counter in each element.
const (
	// setConnections counts the first packets of connections, setIncoming packets from clients, setOutgoing those to them.
	setConnections = "connections"
	setIncoming    = "incoming"
	setOutgoing    = "outgoing"
)

var counterSets = []string{setConnections, setIncoming, setOutgoing}

// nftName returns nft's name for the protocol.
func nftName(p ipvs.Protocol) string { return strings.ToLower(p.String()) }
