package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// L2Advertisement says which pools' addresses are answered by ARP, on which nodes and interfaces. A Service whose
// address no advertisement matches keeps the address but nobody answers for it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=l2adv
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.ipAddressPools`
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Interfaces",type=string,JSONPath=`.spec.interfaces`
type L2Advertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec   L2AdvertisementSpec   `json:"spec,omitempty"`
	Status L2AdvertisementStatus `json:"status,omitempty"`
}

// L2AdvertisementSpec is what the operator wants.
type L2AdvertisementSpec struct {
	// ipAddressPools whose addresses are announced. None named: all pools.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	IPAddressPools []string `json:"ipAddressPools,omitempty"`

	// nodeSelectors limit the nodes that may answer; a node that matches any of them may. None given: all nodes.
	//
	// +listType=atomic
	// +optional
	NodeSelectors []metav1.LabelSelector `json:"nodeSelectors,omitempty"`

	// interfaces on which the address is answered. None named: those with an address in the same subnet.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^/ \\t\\n]+$') && self != '.' && self != '..'",message="is not an interface name: write it as ip link shows it, without spaces or slashes"
	// +listType=set
	// +optional
	Interfaces []string `json:"interfaces,omitempty"`
}

// L2AdvertisementStatus is what the controller found.
type L2AdvertisementStatus struct {
	// conditions of the advertisement: Ready, False while a selector of it cannot be read and so matches no node.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// L2AdvertisementList is a list of advertisements.
//
// +kubebuilder:object:root=true
type L2AdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []L2Advertisement `json:"items"`
}
