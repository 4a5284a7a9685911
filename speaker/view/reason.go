package view

// Reason is why a node does or does not do something. The same value appears in logs, metrics, conditions and tests.
type Reason string

// Why this node announces a VirtualIP or not.
const (
	// Owner: this node is the owner.
	Owner Reason = "Owner"
	// NotOwner: another node is the owner.
	NotOwner Reason = "NotOwner"
	// NoEligibleNode: the VirtualIP lists no node.
	NoEligibleNode Reason = "NoEligibleNode"
	// NodeNotAlive: no listed node is reachable.
	NodeNotAlive Reason = "NodeNotAlive"
	// Waiting: a node that ranks before this one has not claimed the VirtualIP yet.
	Waiting Reason = "Waiting"
	// Observer: this node has just started or resumed after a stall, and claims nothing before it has received the
	// others.
	Observer Reason = "Observer"
	// Isolated: this node receives no member on the network of the address, while others receive one another there.
	Isolated Reason = "Isolated"
	// PartlyIsolated: the same on one of several networks on which the address is announced. A node that reaches all of
	// them ranks first.
	PartlyIsolated Reason = "PartlyIsolated"
	// NotListed: the list does not contain this node.
	NotListed Reason = "NotListed"
	// Excluded: the node has the exclusion label, is being removed from the cluster, or has no network.
	Excluded Reason = "Excluded"
	// Stopping: the speaker of the node is about to end.
	Stopping Reason = "Stopping"
	// NodeDeclined: the node declined the VirtualIP; its own status and log contain the reason.
	NodeDeclined Reason = "NodeDeclined"
	// AddressConflict: another host, which is not a member, answers for the address.
	AddressConflict Reason = "AddressConflict"
	// AnsweredTwice: another owner does not receive this node, over an asymmetric link.
	AnsweredTwice Reason = "AnsweredTwice"
	// Probing: the address is being probed for another host, before its first use.
	Probing Reason = "Probing"
	// NoAdvertisement: no advertisement covers the address on a listed node that is alive.
	NoAdvertisement Reason = "NoAdvertisement"
	// NoLocalEndpoint: the policy is Local and no listed node that is alive has an endpoint; for BGP, this node has
	// none, or only new ones.
	NoLocalEndpoint Reason = "NoLocalEndpoint"
	// NoService: no Service served by IronLB has an address of the VirtualIP.
	NoService Reason = "NoService"
	// DataPlaneNotReady: this node would be the owner but could not program the address.
	DataPlaneNotReady Reason = "DataPlaneNotReady"
	// KernelAnswers: the kernel of this node may answer ARP for the address by itself, because a sysctl is wrong.
	KernelAnswers Reason = "KernelAnswers"
	// NoInterface: this node would be the owner but has no interface to answer on.
	NoInterface Reason = "NoInterface"
)

// Outcomes for an address that a BGPAdvertisement covers, in addition to some of the reasons above and NoEndpoint, with
// which it is announced.
const (
	// Announced: this node announces it.
	Announced Reason = "Announced"
	// GracefulShutdown: this node is being decommissioned and announces the address so that routers prefer another
	// node.
	GracefulShutdown Reason = "GracefulShutdown"
	// NoSession: this node would announce it, and no session with a peer that receives it is established.
	NoSession Reason = "NoSession"
	// NoPeer: this node has no session with a peer that the advertisement names and that accepts the family.
	NoPeer Reason = "NoPeer"
)

// OnlyAnswering reports whether a reason prevents only ARP answers: that does not affect clients behind a router.
func (r Reason) OnlyAnswering() bool { return r == AddressConflict || r == KernelAnswers }

// Why a VirtualIP came to this node.
const (
	// FirstUse: no earlier owner is known.
	FirstUse Reason = "FirstUse"
	// OwnerLost: the previous owner is unreachable or released it.
	OwnerLost Reason = "OwnerLost"
	// TakenOver: the previous owner handed it over.
	TakenOver Reason = "TakenOver"
	// Restarted: this node was the owner before its speaker was restarted.
	Restarted Reason = "Restarted"
)

// Why a VirtualIP left this node, in addition to the reasons above.
const (
	// HandedOver: the successor answers.
	HandedOver Reason = "HandedOver"
	// Yielded: another owner ranks before this node.
	Yielded Reason = "Yielded"
)

// Outcomes for a Service on this node.
const (
	// Programmed: at least one of its ports has a real server.
	Programmed Reason = "Programmed"
	// NoEndpoint: it has no usable endpoint here; connections are refused.
	NoEndpoint Reason = "NoEndpoint"
	// PortConflict: an older Service has one of its addresses and ports.
	PortConflict Reason = "PortConflict"
	// AnnouncedOnly: kube-proxy forwards its addresses; IronLB only announces them.
	AnnouncedOnly Reason = "AnnouncedOnly"
	// AddressRefused: no Service may have its addresses; a pools.Refusal explains why.
	AddressRefused Reason = "AddressRefused"
	// TooLarge: it exceeds a budget of a Service.
	TooLarge Reason = "TooLarge"
	// NoAddress: it has no address and port that this node serves.
	NoAddress Reason = "NoAddress"
)

// Why a Service that is to be forwarded directly is forwarded to endpoints instead.
const (
	// TunnelUnavailable: this node cannot use tunnels.
	TunnelUnavailable Reason = "TunnelUnavailable"
	// NoReturnRoute: this node has no return route of a pool that has any.
	NoReturnRoute Reason = "NoReturnRoute"
	// NodeWithoutTunnel: a node with an endpoint does not report that it can receive through tunnels, or has no
	// InternalIP of the family that this node has.
	NodeWithoutTunnel Reason = "NodeWithoutTunnel"
	// EndpointWithoutNode: an endpoint has no node, so no tunnel leads to it.
	EndpointWithoutNode Reason = "EndpointWithoutNode"
	// NoIPv6Tunnel: the tunnels of this node, or of a node with an IPv6 endpoint, have no IPv6. Only the IPv6 addresses
	// of the Service are forwarded to endpoints.
	NoIPv6Tunnel Reason = "NoIPv6Tunnel"
)

// Why the node is changed, for the log.
const (
	// Planned: the plan changed.
	Planned Reason = "Planned"
	// Restored: the plan is unchanged; another program changed the node, or an earlier attempt failed.
	Restored Reason = "Restored"
)
