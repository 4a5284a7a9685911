package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// Desired is the full desired state of a node: what it does not contain must not exist.
type Desired struct {
	Table ipvs.Table
	// ClusterInternal are virtual servers for clients on this node, Pods and processes, instead of the entry of Table.
	ClusterInternal ipvs.Table
	// Keys are the keys of Table by address.
	Keys   map[netip.Addr]map[ipvs.Key]struct{}
	Filter ipvs.Filter
	// Local are the addresses that are local to the node.
	Local map[netip.Addr]struct{}
	// Announce are the L2 addresses to announce, once they are programmed.
	Announce map[netip.Addr]Announcement
	// HealthPorts are the healthCheckNodePorts to serve.
	HealthPorts map[pools.ServiceKey]HealthPort
	// Checks are the probes of other nodes and of new endpoints.
	Checks map[Check]struct{}
	// VIPs and Services give the reasons.
	VIPs     map[string]Decision
	Services map[pools.ServiceKey]Reason
	// Refused are the addresses that no Service may have, of the Services that have any.
	Refused map[pools.ServiceKey]map[netip.Addr]pools.Refusal
	// Gateways are those of this node outside the addresses and Pod networks of Nodes, sorted. The slice is immutable.
	Gateways []netip.Addr
	// Claims are the claims to publish to the other members, Segments the interfaces on which to receive these.
	Claims   map[string]Claim
	Segments map[string]struct{}
	// BGP is the desired state of the BGP daemon. PeerProblems are the BGPPeers of this node that have no session, or
	// lack part of their configuration. LocalPrefs are the contradictions of advertisements, with the number of
	// prefixes.
	BGP          BGP
	PeerProblems map[string]PeerProblem
	LocalPrefs   map[LocalPrefs]int
	// Unreachable counts the endpoints on unreachable nodes, by node, for nodes that have any.
	Unreachable map[string]UnreachableEndpoints
	// Routed are the addresses that a BGPAdvertisement covers on this node, Under those of each aggregate.
	Routed map[netip.Addr]Routed
	Under  map[netip.Prefix]map[netip.Addr]struct{}
}

func newDesired() *Desired {
	return &Desired{
		Table:           ipvs.Table{},
		ClusterInternal: ipvs.Table{},
		Keys:            map[netip.Addr]map[ipvs.Key]struct{}{},
		Filter:          ipvs.Filter{},
		Local:           map[netip.Addr]struct{}{},
		Announce:        map[netip.Addr]Announcement{},
		HealthPorts:     map[pools.ServiceKey]HealthPort{},
		Checks:          map[Check]struct{}{},
		VIPs:            map[string]Decision{},
		Services:        map[pools.ServiceKey]Reason{},
		Refused:         map[pools.ServiceKey]map[netip.Addr]pools.Refusal{},
		Claims:          map[string]Claim{},
		Segments:        map[string]struct{}{},
		Unreachable:     map[string]UnreachableEndpoints{},

		BGP:          BGP{Peers: map[string]Peer{}, Routes: map[netip.Prefix]Route{}},
		PeerProblems: map[string]PeerProblem{},
		LocalPrefs:   map[LocalPrefs]int{},
		Routed:       map[netip.Addr]Routed{},
		Under:        map[netip.Prefix]map[netip.Addr]struct{}{},
	}
}

// Changed names the parts of Desired that may differ from the last call of Plan; everything else is unchanged.
type Changed struct {
	// Keys of Table and ClusterInternal.
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
	// Peers of BGP.Peers and PeerProblems; Routes of BGP.Routes, with the reason. RouterID, NodeDecommissioning and
	// LocalPrefs are set if they differ.
	Peers                                     map[string]struct{}
	Routes                                    map[netip.Prefix]Reason
	RouterID, NodeDecommissioning, LocalPrefs bool
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

// Announcement is where to announce an address.
type Announcement struct {
	// VIP is the name of the VirtualIP.
	VIP string
	// Interfaces by name, sorted; at least one, all of them up.
	Interfaces []string
	// Probe requests a probe before the first answer: no earlier owner of the address is known.
	Probe bool
	// Epoch changes each time the address must be re-announced: another owner has stopped answering, and a neighbour
	// may have learned that one (wire.md 1.3, ownership rule 4).
	Epoch int
}

// Equal reports whether two announcements are the same.
func (a Announcement) Equal(b Announcement) bool {
	return a.VIP == b.VIP && a.Probe == b.Probe && a.Epoch == b.Epoch && slices.Equal(a.Interfaces, b.Interfaces)
}

// Decision is the decision about a VirtualIP from one node's point of view.
type Decision struct {
	// Owner is the node that answers, as observed by this node.
	Owner  string
	Reason Reason
	// Reporter is set on the one node that writes the VirtualIP's status: the owner; without an owner the first listed
	// node that is alive; without such a node the one that the status names, to retract its claim.
	Reporter bool
	// Addresses that are announced together.
	Addresses []netip.Addr
	// Local is set with NoLocalEndpoint: the nodes with endpoints of each Service with policy Local that has any, by
	// name.
	Local []LocalService
	// Moved is why the VirtualIP last moved to or from this node, at At; empty if it never did. From is the last
	// observed owner before it came. Vacant is since when there was no owner, zero if there was one.
	Moved  Reason
	At     time.Time
	From   string
	Vacant time.Time
	// Asymmetric is another owner with an asymmetric link: it does not receive this node, but others do.
	Asymmetric string
	// Rival is an unreachable node that seems to be an owner, too: it overwrote this node's status.
	Rival string
}

// LocalService is a Service with policy Local and the nodes of its endpoints, sorted.
type LocalService struct {
	Service pools.ServiceKey
	Nodes   []string
}

// Status is the published state of a VirtualIP, written by its reporter.
type Status struct {
	// Node announces the addresses on Interfaces; empty for none.
	Node       string
	Interfaces []string
	Announced  bool
	Reason     Reason
	Message    string
	// Moved is why it came here at At, From another node.
	Moved Reason
	At    time.Time
	From  string
	// Conflict describes the other hosts or nodes that answer for an address, empty if none is known; ConflictReason
	// distinguishes hosts from nodes.
	Conflict       string
	ConflictReason Reason
	// Hosts are the addresses for which other hosts answer, in order.
	Hosts []HostConflict
}

// HostConflict is an address for which another host answers, with its hardware address and the interface that received
// it.
type HostConflict struct {
	Addr           netip.Addr
	MAC, Interface string
}
