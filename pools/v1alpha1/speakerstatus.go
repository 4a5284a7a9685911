package v1alpha1

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SpeakerStatus is the status of one node, written by its speaker. Its name is that of the node. The speaker writes it
// on change, at most once a second. It is informational: for people and for kubectl ironlb status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=speakerstatuses,scope=Cluster,shortName=spkst
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Healthy",type=boolean,JSONPath=`.status.dataPlane.healthy`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.dataPlane.reason`
// +kubebuilder:printcolumn:name="VIPs",type=integer,JSONPath=`.status.virtualIPs`
// +kubebuilder:printcolumn:name="Alive",type=string,JSONPath=`.status.alive`
// +kubebuilder:printcolumn:name="BGP",type=string,JSONPath=`.status.bgp.established`
// +kubebuilder:printcolumn:name="Updated",type=date,JSONPath=`.status.updated`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.dataPlane.message`,priority=1
type SpeakerStatus struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status SpeakerStatusStatus `json:"status,omitempty"`
}

// SpeakerStatusStatus is what the speaker found.
type SpeakerStatusStatus struct {
	// dataPlane reports whether the node forwards.
	//
	// +optional
	DataPlane DataPlaneStatus `json:"dataPlane,omitempty"`

	// tunnels are those of direct forwarding.
	//
	// +optional
	Tunnels *TunnelsStatus `json:"tunnels,omitempty"`

	// returnRoutes are the routes of answers, of the pools with spec.returnRoutes.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=pool
	// +listMapKey=family
	// +optional
	ReturnRoutes []ReturnRouteStatus `json:"returnRoutes,omitempty"`

	// virtualIPs is how many VirtualIPs the node answers for.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	VirtualIPs int32 `json:"virtualIPs"`

	// interfaces that can announce addresses.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=name
	// +optional
	Interfaces []InterfaceStatus `json:"interfaces,omitempty"`

	// alive counts the members that are alive, of those listed, as 4/5: without this node.
	//
	// +optional
	Alive string `json:"alive,omitempty"`

	// members are the other speakers as this one receives them. With more than 32 others only eight are listed, so that
	// a node that dies changes eight statuses; unreachable and withoutWitness are limited likewise.
	//
	// +kubebuilder:validation:MaxItems=16384
	// +listType=map
	// +listMapKey=node
	// +optional
	Members []MemberStatus `json:"members,omitempty"`

	// unreachable are the nodes that this node cannot reach: neither their speaker nor their kernel answers. Their
	// endpoints take no new connections from this node.
	//
	// +kubebuilder:validation:MaxItems=16384
	// +listType=map
	// +listMapKey=node
	// +optional
	Unreachable []UnreachableStatus `json:"unreachable,omitempty"`

	// withoutWitness are the nodes whose kernel answers neither ICMP echo nor ARP or neighbor discovery, though their
	// speaker is or was received. Should one of them die, its endpoints are left to Kubernetes.
	//
	// +kubebuilder:validation:MaxItems=16384
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	WithoutWitness []string `json:"withoutWitness,omitempty"`

	// cutOff is true while this node may be cut off itself: most other nodes vanished at once, and no gateway answers.
	// Then it leaves no endpoint out.
	//
	// +optional
	CutOff bool `json:"cutOff,omitempty"`

	// liveness is about the thread that exchanges heartbeats with the other speakers.
	//
	// +optional
	Liveness *LivenessStatus `json:"liveness,omitempty"`

	// gateways are the next hops of the node, through which it sends packets. No Service gets or serves one of them.
	//
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=45
	// +listType=set
	// +optional
	Gateways []string `json:"gateways,omitempty"`

	// bgp is the status of BGP on the node.
	//
	// +optional
	BGP *BGPStatus `json:"bgp,omitempty"`

	// conditions of the node. DataPlaneAvailable: the kernel has what the data plane needs. SchedulersAvailable: the data
	// plane has the requested schedulers. KernelParametersSet: the kernel parameters have the required values.
	// FirewallsCompatible: no other firewall drops packets to virtual servers. ServiceProxiesCompatible: kube-proxy and
	// other service proxies do not conflict with the speaker. APIAccess: the API server refuses no kind of object.
	// PodTrafficDetected: detectLocalMode covers the Pods of the node.
	// BridgeNetfilter: what Pods behind one bridge send one another passes the packet filter. NetworkPolicyEnforced:
	// the data plane bypasses no NetworkPolicy of Calico. NoProxyARP: no host answers for every address.
	// OneInterfacePerSubnet: no two interfaces have a subnet in common. DeadlineScheduling: the liveness thread has that
	// scheduling class. NoStall: the speaker did not stall in the last five minutes.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// updated is when the speaker wrote this.
	//
	// +optional
	Updated *metav1.Time `json:"updated,omitempty"`

	// stopped is when the speaker ended; the rest is as it was then. ironlb-bgpd may keep the sessions.
	//
	// +optional
	Stopped *metav1.Time `json:"stopped,omitempty"`
}

// DataPlaneStatus reports whether a node forwards packets to the addresses.
type DataPlaneStatus struct {
	// healthy is true while all is programmed as it should be.
	Healthy bool `json:"healthy"`
	// reason as one identifier.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is human-readable, with the remediation.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// TunnelsStatus reports whether a node can send packets to endpoints on other nodes through tunnels.
type TunnelsStatus struct {
	// available is true while the node can use tunnels.
	Available bool `json:"available"`
	// message explains why it cannot, or why it can do so for IPv4 only, with the remediation.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// mtu of the tunnels in octets, while there are any. A larger packet of a client causes an ICMP error with this MTU.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// virtualServers is how many virtual servers are forwarded directly: an address, protocol and port of a Service each.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	VirtualServers int32 `json:"virtualServers,omitempty"`
	// slotsDiffer are nodes that, for 10 s or more, send connections of the same virtual servers to other nodes than this
	// node does. A connection breaks when its packets move between such nodes. At most 64 are listed.
	//
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	SlotsDiffer []string `json:"slotsDiffer,omitempty"`
}

// MaxReturnRouteStatuses is how many returnRoutes a SpeakerStatus has at most.
const MaxReturnRouteStatuses = 1024

// ReturnRouteStatus is the route of the answers of a pool on a node, in one family.
type ReturnRouteStatus struct {
	// pool is the name of the IPAddressPool.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool"`
	// family of the addresses.
	Family corev1.IPFamily `json:"family"`
	// gateway in use.
	//
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// interface towards the gateway.
	//
	// +optional
	Interface string `json:"interface,omitempty"`
	// inEffect is true while answers leave by it.
	InEffect bool `json:"inEffect"`
	// message explains why they do not, with the remediation.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// SchedulingClass is how the kernel schedules a thread.
//
// +kubebuilder:validation:Enum=Deadline;Nice;Normal
type SchedulingClass string

const (
	// SchedulingDeadline is SCHED_DEADLINE: before all other threads of the node for a share of the time.
	SchedulingDeadline SchedulingClass = "Deadline"
	// SchedulingNice is SCHED_OTHER with a nice value of -20.
	SchedulingNice SchedulingClass = "Nice"
	// SchedulingNormal is SCHED_OTHER.
	SchedulingNormal SchedulingClass = "Normal"
)

// LivenessStatus is about the thread that exchanges heartbeats.
type LivenessStatus struct {
	// schedulingClass that the kernel granted. With another than Deadline the thread may be late on a busy node, and
	// the node may lose VirtualIPs.
	SchedulingClass SchedulingClass `json:"schedulingClass"`
	// message explains why it is not Deadline.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// InterfaceStatus is a network interface of the node.
type InterfaceStatus struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	Name string `json:"name"`
	// subnets of its addresses.
	//
	// +listType=set
	// +optional
	Subnets []string `json:"subnets,omitempty"`
	// up is true while it is up and has carrier.
	Up bool `json:"up"`
	// mtu in octets.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	MTU int32 `json:"mtu,omitempty"`
}

// MemberState is what one speaker thinks of another.
//
// +kubebuilder:validation:Enum=Alive;Silent;Isolated;Observer;Leaving
type MemberState string

const (
	// MemberAlive is received.
	MemberAlive MemberState = "Alive"
	// MemberSilent has not been received for the dead time.
	MemberSilent MemberState = "Silent"
	// MemberIsolated is received by another path only, and reports that it receives no member on the segment.
	MemberIsolated MemberState = "Isolated"
	// MemberObserver is received and claims nothing yet: it has just started or resumed after a stall.
	MemberObserver MemberState = "Observer"
	// MemberLeaving is received and is about to end.
	MemberLeaving MemberState = "Leaving"
)

// MemberStatus is another speaker as this one receives it.
type MemberStatus struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node  string      `json:"node"`
	State MemberState `json:"state"`
	// since when it has been in this state.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// Witness is how the kernel of a node is asked whether it is there.
//
// +kubebuilder:validation:Enum=ICMPEcho;Neighbor
type Witness string

const (
	// WitnessEcho is ICMP echo, or ICMPv6 echo.
	WitnessEcho Witness = "ICMPEcho"
	// WitnessNeighbor is ARP, or neighbor discovery.
	WitnessNeighbor Witness = "Neighbor"
)

// UnreachableStatus is a node that cannot be reached.
type UnreachableStatus struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// since when it is unreachable.
	Since metav1.Time `json:"since"`
	// silent are the witnesses that do not answer.
	//
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Silent []Witness `json:"silent,omitempty"`
	// gateway answered, where this node might have been cut off itself.
	//
	// +kubebuilder:validation:MaxLength=45
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// endpoints on the node that take no new connections, over all ports of Services.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Endpoints int32 `json:"endpoints,omitempty"`
	// endpointsFailedOpen are those that take new connections because no other endpoint is left.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	EndpointsFailedOpen int32 `json:"endpointsFailedOpen,omitempty"`
}

// BGPStatus is the status of BGP on a node.
type BGPStatus struct {
	// established counts the sessions that are established, of all, as 1/2.
	//
	// +optional
	Established string `json:"established,omitempty"`

	// sessions of the node, one for each BGPPeer that selects it.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=peer
	// +optional
	Sessions []SessionStatus `json:"sessions,omitempty"`

	// unserved are the addresses covered by a BGPAdvertisement that this node could not program, by reason. The status of
	// the BGPAdvertisement has the addresses that no node serves.
	//
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=reason
	// +optional
	Unserved []UnservedStatus `json:"unserved,omitempty"`

	// notDirect are the addresses that only BGP announces and that this node forwards to endpoints, although their
	// Services are to be forwarded directly, by reason. For other addresses the VirtualIP has the condition NotDirect.
	//
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=reason
	// +optional
	NotDirect []UnservedStatus `json:"notDirect,omitempty"`
}

// MostUnserved is how many addresses are listed for one reason.
const MostUnserved = 10

// UnservedStatus are the addresses that serve no traffic, or are not forwarded directly, for one reason.
type UnservedStatus struct {
	// reason as one identifier.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// message is human-readable, with the remediation.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// count of the addresses.
	//
	// +kubebuilder:validation:Minimum=1
	Count int32 `json:"count"`
	// addresses, the lowest ten of them.
	//
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
}

// NewUnservedStatus returns the status of the addresses, which are sorted.
func NewUnservedStatus(reason, message string, addresses []netip.Addr) UnservedStatus {
	out := UnservedStatus{Reason: reason, Message: message, Count: int32(len(addresses))}
	for _, addr := range addresses[:min(len(addresses), MostUnserved)] {
		out.Addresses = append(out.Addresses, addr.String())
	}
	return out
}

// SessionState is how far a BGP session is (RFC 4271, 8.2.2).
//
// +kubebuilder:validation:Enum=Idle;Connect;Active;OpenSent;OpenConfirm;Established
type SessionState string

// SessionEstablished is the state of a session that works.
const SessionEstablished SessionState = "Established"

// ReasonNotConfigured is the reason of an established session that does not do all that the BGPPeer asks for. Any other
// reason of an established session keeps the reason of the last failure.
const ReasonNotConfigured = "NotConfigured"

// SessionStatus is a BGP session of a node.
type SessionStatus struct {
	// peer is the name of the BGPPeer.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Peer string `json:"peer"`
	// address of the router.
	//
	// +optional
	Address string       `json:"address,omitempty"`
	State   SessionState `json:"state"`
	// since when it has been in this state, or has tried to come up.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// reason as one identifier: why it is not established, or was not before. NotConfigured on an established one: it
	// does not do all that the BGPPeer asks for.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// message for people.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// families that the node announces over the session; none while it has no such session.
	//
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +optional
	Families []corev1.IPFamily `json:"families,omitempty"`
	// prefixes is the number of prefixes sent to the router; 0 while the session is not established.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Prefixes int32 `json:"prefixes"`
	// peerASN is the router's AS number, once known.
	//
	// +optional
	PeerASN int64 `json:"peerASN,omitempty"`
	// peerID is the router's BGP identifier, once known.
	//
	// +optional
	PeerID string `json:"peerID,omitempty"`
	// bfd is how its BFD session is.
	//
	// +optional
	BFD *BFDStatus `json:"bfd,omitempty"`
}

// BFDState is one of RFC 5880, 6.2.
//
// +kubebuilder:validation:Enum=AdminDown;Down;Init;Up
type BFDState string

// BFDUp is the state of a BFD session that receives the router.
const BFDUp BFDState = "Up"

// BFDStatus is a BFD session of a node.
type BFDStatus struct {
	State BFDState `json:"state"`
	// since when it has been in this state.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// reason is BFDNotUp where the BGP session has been established for so long that BFD should be up, too: nothing
	// watches the path.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// message for people: why it is not up.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// SpeakerStatusList is a list of speakers.
//
// +kubebuilder:object:root=true
type SpeakerStatusList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpeakerStatus `json:"items"`
}
