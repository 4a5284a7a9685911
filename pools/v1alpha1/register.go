// Package v1alpha1 holds the API kinds of the group ironlb.io: what operators write (IPAddressPool, L2Advertisement)
// what the controllers assign to the speakers (VirtualIP), and the status of their nodes (SpeakerStatus). The CRDs
// under deploy/chart/ironlb/crds are generated from it.
//
// +kubebuilder:object:generate=true
// +groupName=ironlb.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "ironlb.io", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&IPAddressPool{}, &IPAddressPoolList{},
		&L2Advertisement{}, &L2AdvertisementList{},
		&VirtualIP{}, &VirtualIPList{},
		&SpeakerStatus{}, &SpeakerStatusList{},
		&BGPPeer{}, &BGPPeerList{},
		&BGPAdvertisement{}, &BGPAdvertisementList{},
		&BFDProfile{}, &BFDProfileList{},
		&Community{}, &CommunityList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// What the controllers read and write on a Service.
const (
	// AnnotationAllocatedFrom names the pools of a Service's addresses, in the order of the addresses, separated by
	// commas. Written by the controller.
	AnnotationAllocatedFrom = "ironlb.io/allocated-from"
	// AnnotationPool asks for an address out of the named pool.
	AnnotationPool = "ironlb.io/ip-pool"
	// AnnotationAddresses asks for exactly these addresses, separated by commas.
	AnnotationAddresses = "ironlb.io/ips"
)

// LabelProxy names the proxy that serves a Service in place of kube-proxy, which leaves alone the Services that have
// it; ProxyName is its value for the speakers (k8s.io/kubernetes/pkg/proxy/apis).
const (
	LabelProxy = "service.kubernetes.io/service-proxy-name"
	ProxyName  = "ironlb"
)

// AnnotationRebalance on an IPAddressPool or a VirtualIP asks for its addresses to be moved to the nodes that they
// would be given if they were new, one after another. Its value is any text, the time by custom: another value requests
// it again. A pool's status has the last completed value; from a VirtualIP the controller takes the annotation away.
const AnnotationRebalance = "ironlb.io/rebalance"

// Namespaces of the programs, and of the Secrets that BGPPeers name, unless configured otherwise.
const (
	Namespace         = "ironlb-system"
	PasswordNamespace = "ironlb-bgp"
)

// ControllerName is the name of the controllers' process, of its Lease, of the source of its Events, and of the owner
// of the fields that it applies.
const ControllerName = "ironlb-ccm"

// Condition types of a VirtualIP.
const (
	// ConditionAnnounced is True while status.node answers for the addresses.
	ConditionAnnounced = "Announced"
	// ConditionNoEligibleNode is True while no node may or can answer.
	ConditionNoEligibleNode = "NoEligibleNode"
	// ConditionConflict is True while another host answers for one of the addresses: the message names it, and the
	// addresses are not announced unless they were held before it came (announce.md L2.8). With the reason
	// AnsweredTwice that is another node, which does not receive the one in status.node, and which gives the addresses
	// up when it reads this.
	ConditionConflict = "Conflict"
	// ConditionNotDirect is True while a Service of a VirtualIP that is to be forwarded directly is forwarded to
	// endpoints by the node that writes the status.
	ConditionNotDirect = "NotDirect"
	// ConditionKubeProxyConflict is True while kube-proxy and the speaker get into each other's way on the node that
	// writes the status: the message names the fix. It is absent otherwise.
	ConditionKubeProxyConflict = "KubeProxyConflict"
)

// ConditionEstablished of a BGPPeer is True while every node that should have a session has one.
const ConditionEstablished = "Established"
