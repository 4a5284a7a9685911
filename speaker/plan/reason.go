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
	// NodeNotReady: no listed node is alive.
	NodeNotReady Reason = "NodeNotReady"
	// NoAdvertisement: no advertisement covers the address on a listed node that is alive.
	NoAdvertisement Reason = "NoAdvertisement"
	// NoLocalEndpoint: the policy is Local and no listed node that is alive has an endpoint.
	NoLocalEndpoint Reason = "NoLocalEndpoint"
	// NoService: no Service of ours holds an address of the VirtualIP.
	NoService Reason = "NoService"
	// DataPlaneNotReady: this node would answer but could not program the address.
	DataPlaneNotReady Reason = "DataPlaneNotReady"
	// NoInterface: this node would answer but has no interface to answer on.
	NoInterface Reason = "NoInterface"
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
	// NoAddress: it has no address and port that this node serves.
	NoAddress Reason = "NoAddress"
)
