package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VirtualIP is one unit of ownership: the addresses that move together, the Services on them, and the nodes that may
// answer for them in order of preference. The placement controller writes the spec; the node that answers, the status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=vip
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.status.node`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.since`
// +kubebuilder:printcolumn:name="Announced",type=string,JSONPath=`.status.conditions[?(@.type=="Announced")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Announced")].reason`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.spec.nodes`,priority=1
type VirtualIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   VirtualIPSpec   `json:"spec"`
	Status VirtualIPStatus `json:"status,omitempty"`
}

// VirtualIPSpec is what the placement controller decided. metadata.generation orders the decisions.
type VirtualIPSpec struct {
	// addresses that one node answers for together, IPv4 before IPv6.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:items:XValidation:rule="isIP(self)",message="is not an address: write it like 192.0.2.10 or 2001:db8::10"
	// +listType=set
	Addresses []string `json:"addresses"`

	// services that share the addresses, sorted by namespace and name.
	//
	// +listType=atomic
	Services []ServiceReference `json:"services"`

	// nodes that may answer, in order of preference: the first live one that can forward does.
	//
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// ServiceReference names a Service.
type ServiceReference struct {
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// VirtualIPStatus is written by the node that answers. The placement controller writes it only when no node may answer.
type VirtualIPStatus struct {
	// node that answers for the addresses.
	// +optional
	Node string `json:"node,omitempty"`

	// interfaces on which it answers.
	//
	// +listType=set
	// +optional
	Interfaces []string `json:"interfaces,omitempty"`

	// since when this node has answered.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// conflicts are the addresses for which another host answers. While announced is not True either, ironlb-ccm gives
	// a Service that did not ask for the address another one.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=address
	// +optional
	Conflicts []AddressConflict `json:"conflicts,omitempty"`

	// conditions: Announced, NoEligibleNode; Conflict, KubeProxyConflict and NotDirect while there is one.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AddressConflict is an address for which another host answers.
type AddressConflict struct {
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// mac is the hardware address of the host.
	//
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac"`
	// interface of the node that found it.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Interface string `json:"interface,omitempty"`
}

// VirtualIPList is a list of virtual addresses.
//
// +kubebuilder:object:root=true
type VirtualIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualIP `json:"items"`
}
