package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// Desired is everything that a node must hold. It is whole: what is not in it must not be there.
type Desired struct {
	Table ipvs.Table
	// Inside are virtual servers that Pods of and processes on this node get in place of the entry of Table.
	Inside ipvs.Table
	// Keys are those of Table by address.
	Keys   map[netip.Addr]map[ipvs.Key]struct{}
	Filter ipvs.Filter
	// Local are the addresses that the node takes in as its own.
	Local map[netip.Addr]struct{}
	// Announce are the addresses that this node answers for, once they are programmed.
	Announce map[netip.Addr]Announcement
	// HealthPorts are the healthCheckNodePorts to serve.
	HealthPorts map[pools.ServiceKey]HealthPort
	// Checks are the probes of other nodes and of new endpoints to make.
	Checks map[Check]struct{}
	// VIPs and Services say why.
	VIPs     map[string]Decision
	Services map[pools.ServiceKey]Reason
	// Refused are the addresses that a Service has and may not have, of those that have any.
	Refused map[pools.ServiceKey]map[netip.Addr]pools.Refusal
	// Gateways are those of this node of which others do not know, sorted. The slice is not changed once it is made.
	Gateways []netip.Addr
	// Claims are what this node says of VirtualIPs to the others, and Segments the interfaces on which it wants to hear them.
	Claims   map[string]Claim
	Segments map[string]struct{}
	// BGP is whom this node speaks to and what it tells them. PeerProblems are the BGPPeers of this node that have no session, or not all
	// that they ask for, LocalPrefs the contradictions of advertisements, with the number of prefixes.
	BGP          BGP
	PeerProblems map[string]PeerProblem
	LocalPrefs   map[LocalPrefs]int
	// Unreachable counts the endpoints on unreachable nodes by node, of those that have any.
	Unreachable map[string]UnreachableEndpoints
	// Routed are the addresses that a BGPAdvertisement covers on this node, Under those in each prefix that is not of one address.
	Routed map[netip.Addr]Routed
	Under  map[netip.Prefix]map[netip.Addr]struct{}
}

func newDesired() *Desired {
	return &Desired{
		Table:       ipvs.Table{},
		Inside:      ipvs.Table{},
		Keys:        map[netip.Addr]map[ipvs.Key]struct{}{},
		Filter:      ipvs.Filter{},
		Local:       map[netip.Addr]struct{}{},
		Announce:    map[netip.Addr]Announcement{},
		HealthPorts: map[pools.ServiceKey]HealthPort{},
		Checks:      map[Check]struct{}{},
		VIPs:        map[string]Decision{},
		Services:    map[pools.ServiceKey]Reason{},
		Refused:     map[pools.ServiceKey]map[netip.Addr]pools.Refusal{},
		Claims:      map[string]Claim{},
		Segments:    map[string]struct{}{},
		Unreachable: map[string]UnreachableEndpoints{},

		BGP:          BGP{Peers: map[string]Peer{}, Routes: map[netip.Prefix]Route{}},
		PeerProblems: map[string]PeerProblem{},
		LocalPrefs:   map[LocalPrefs]int{},
		Routed:       map[netip.Addr]Routed{},
		Under:        map[netip.Prefix]map[netip.Addr]struct{}{},
	}
}

// Changed names what of Desired may differ from the last call of Plan; all else is the same.
type Changed struct {
	// Keys of Table and Inside.
	Keys     map[ipvs.Key]struct{}
	Elements map[ipvs.Element]struct{}
	// Addrs of Local, Announce and Routed.
	Addrs map[netip.Addr]struct{}
	// VIPs of VIPs and Claims.
	VIPs map[string]struct{}
	// Services of Services, Refused and HealthPorts.
	Services map[pools.ServiceKey]struct{}
	Checks   map[Check]struct{}
	// Unreachable are the nodes of Unreachable.
	Unreachable map[string]struct{}
	// Segments is set if they differ.
	Segments bool
	// Peers of BGP.Peers and PeerProblems, Routes of BGP.Routes, with why. RouterID, NodeGoes and LocalPrefs are set if they differ.
	Peers                          map[string]struct{}
	Routes                         map[netip.Prefix]Reason
	RouterID, NodeGoes, LocalPrefs bool
}

func newChanged() *Changed {
	return &Changed{
		Keys:     map[ipvs.Key]struct{}{},
		Elements: map[ipvs.Element]struct{}{},
		Addrs:    map[netip.Addr]struct{}{},
		VIPs:     map[string]struct{}{},
		Services: map[pools.ServiceKey]struct{}{},
		Checks:   map[Check]struct{}{},
		Peers:    map[string]struct{}{},
		Routes:   map[netip.Prefix]Reason{},

		Unreachable: map[string]struct{}{},
	}
}

// Announcement says where an address is answered for.
type Announcement struct {
	// VIP is the name of the VirtualIP.
	VIP string
	// Interfaces by name, sorted; at least one, all of them up.
	Interfaces []string
	// Probe asks for a probe before the first answer: no node is known to have held the address before.
	Probe bool
	// Again is another number each time that the address is to be announced anew: another node answered for it as well, and has
	// stopped, so a neighbour may have learnt that one (wire.md 1.3, ownership rule 4).
	Again int
}

// Equal tells whether two announcements are the same.
func (a Announcement) Equal(b Announcement) bool {
	return a.VIP == b.VIP && a.Probe == b.Probe && a.Again == b.Again && slices.Equal(a.Interfaces, b.Interfaces)
}

// Decision is what was decided about a VirtualIP, seen from one node.
type Decision struct {
	// Owner is the node that answers, as far as is known here.
	Owner  string
	Reason Reason
	// Reporter is set on the one node that writes the VirtualIP's status: the owner, or while there is none the first
	// listed node that is alive, or while there is none either the node that the status names, to take its claim back.
	Reporter bool
	// Addresses that are announced together.
	Addresses []netip.Addr
	// Local is set with NoLocalEndpoint: where the Services of policy Local that have endpoints have them, by name.
	Local []LocalService
	// Moved is why the VirtualIP last came to this node or left it, and when; empty if it never did. From is the node that
	// was last seen to hold it before it came, Vacant since when nobody did, zero if somebody did until then.
	Moved  Reason
	At     time.Time
	From   string
	Vacant time.Time
	// Deaf is a node that answers as well and does not hear this one, which others hear.
	Deaf string
	// Rival is a node that seems to answer as well where this one does not hear it: it wrote over this node's status.
	Rival string
}

// LocalService is a Service of policy Local with the nodes of its endpoints, sorted.
type LocalService struct {
	Service pools.ServiceKey
	Nodes   []string
}

// Status is what the reporter of a VirtualIP says about it.
type Status struct {
	// Node answers for the addresses, on Interfaces; empty if nobody does.
	Node       string
	Interfaces []string
	Announced  bool
	Reason     Reason
	Message    string
	// Moved is why it came here, At that time, From another node.
	Moved Reason
	At    time.Time
	From  string
	// Conflict says who else answers for one of the addresses, empty if nobody is known to; ConflictReason tells another host from another node.
	Conflict       string
	ConflictReason Reason
	// Hosts are the addresses for which other hosts answer, in order.
	Hosts []HostConflict
}

// HostConflict is an address for which another host answers: its hardware address, and the interface on which it was
// received.
type HostConflict struct {
	Addr           netip.Addr
	MAC, Interface string
}
