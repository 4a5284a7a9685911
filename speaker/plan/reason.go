package plan

// Reason says why a node does or does not do something. The same value goes into logs, metrics, conditions and tests.
type Reason string

// Why this node answers for a VirtualIP, or not.
const (
	// Owner: this node answers.
	Owner Reason = "Owner"
	// NotOwner: another node answers.
	NotOwner Reason = "NotOwner"
	// NoEligibleNode: the VirtualIP lists no node.
	NoEligibleNode Reason = "NoEligibleNode"
	// NodeNotAlive: no listed node is heard.
	NodeNotAlive Reason = "NodeNotAlive"
	// Waiting: a node that comes first has not said yet that it answers.
	Waiting Reason = "Waiting"
	// Observer: this node has just started or woke up late, and claims nothing before it has heard the others.
	Observer Reason = "Observer"
	// Isolated: this node hears nobody on the network of the address, while others hear one another there.
	Isolated Reason = "Isolated"
	// PartlyIsolated: the same on one of several networks on which the address is announced. A node that reaches all of
	// them comes first.
	PartlyIsolated Reason = "PartlyIsolated"
	// NotListed: the list names other nodes than this one.
	NotListed Reason = "NotListed"
	// Excluded: the node is labelled so, leaves the cluster or has no network.
	Excluded Reason = "Excluded"
	// Stopping: the speaker of the node is about to end.
	Stopping Reason = "Stopping"
	// NodeDeclined: the node says that it will not answer; its own status and log say why.
	NodeDeclined Reason = "NodeDeclined"
	// AddressConflict: another host, which is no speaker, answers for the address.
	AddressConflict Reason = "AddressConflict"
	// AnsweredTwice: another node, which does not hear this one, answers as well.
	AnsweredTwice Reason = "AnsweredTwice"
	// Probing: it is asked whether another host has the address, before its first use.
	Probing Reason = "Probing"
	// NoAdvertisement: no advertisement covers the address on a listed node that is alive.
	NoAdvertisement Reason = "NoAdvertisement"
	// NoLocalEndpoint: the policy is Local and no listed node that is alive has an endpoint; by BGP, this one has none, or only new ones.
	NoLocalEndpoint Reason = "NoLocalEndpoint"
	// NoService: no Service of ours holds an address of the VirtualIP.
	NoService Reason = "NoService"
	// DataPlaneNotReady: this node would answer but could not program the address.
	DataPlaneNotReady Reason = "DataPlaneNotReady"
	// KernelAnswers: the kernel of this node may answer ARP for the address by itself, for a sysctl is wrong.
	KernelAnswers Reason = "KernelAnswers"
	// NoInterface: this node would answer but has no interface to answer on.
	NoInterface Reason = "NoInterface"
)

// What became of an address that a BGPAdvertisement covers, beside some of the reasons above and NoEndpoint, with which it is announced.
const (
	// Announced: this node announces it.
	Announced Reason = "Announced"
	// GracefulShutdown: this node is about to go, and announces it so that routers prefer another one.
	GracefulShutdown Reason = "GracefulShutdown"
	// NoPeer: this node has no session with a peer that the advertisement names, and that takes addresses of the family.
	NoPeer Reason = "NoPeer"
)

// onlyAnswering tells whether a reason why this node cannot answer for an address keeps it from answering ARP alone: that bears on nobody
// beyond a router.
func (r Reason) onlyAnswering() bool { return r == AddressConflict || r == KernelAnswers }

// Why a VirtualIP came to this node.
const (
	// FirstUse: nobody was known to hold it.
	FirstUse Reason = "FirstUse"
	// OwnerLost: the node that held it is not heard any more, or gave it up.
	OwnerLost Reason = "OwnerLost"
	// TakenOver: the node that held it asked for it.
	TakenOver Reason = "TakenOver"
	// Restarted: this node held it before its speaker was restarted.
	Restarted Reason = "Restarted"
)

// Why it left this node, if not for one of the reasons above.
const (
	// HandedOver: the successor answers.
	HandedOver Reason = "HandedOver"
	// Yielded: another node held it, too, and comes first.
	Yielded Reason = "Yielded"
)

// What became of a Service on this node.
const (
	// Programmed: there is at least one real server for one of its ports.
	Programmed Reason = "Programmed"
	// NoEndpoint: it has no usable endpoint here; connections are refused.
	NoEndpoint Reason = "NoEndpoint"
	// PortConflict: an older Service holds one of its addresses and ports.
	PortConflict Reason = "PortConflict"
	// AnnouncedOnly: kube-proxy forwards its addresses, they are only answered for.
	AnnouncedOnly Reason = "AnnouncedOnly"
	// AddressRefused: no Service may have the addresses that it has; a pools.Refusal says why.
	AddressRefused Reason = "AddressRefused"
	// NoAddress: it has no address and port that this node serves.
	NoAddress Reason = "NoAddress"
)
