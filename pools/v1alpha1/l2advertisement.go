package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// L2Advertisement selects the addresses to announce by ARP and NDP, on which nodes and interfaces. It is for the pools
// and Services that it selects; addresses that move together need one advertisement that selects every Service on them.
// A Service whose address no advertisement matches keeps the address, but no node announces it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=l2adv
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
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
	// ipAddressPools whose addresses are announced, by name. Neither names nor selectors given: all pools.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="is no name that an IPAddressPool can have: write it as kubectl get ippool shows it"
	// +listType=set
	// +optional
	IPAddressPools []string `json:"ipAddressPools,omitempty"`

	// ipAddressPoolSelectors select pools by label, in addition to those named; a pool that matches any of them is
	// meant. One that matches no pool adds none; an empty one ({}) matches every pool.
	//
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors,omitempty"`

	// serviceSelectors limit the Services whose addresses are announced; one that matches any of them is. None given: all
	// Services.
	//
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ServiceSelectors []metav1.LabelSelector `json:"serviceSelectors,omitempty"`

	// nodeSelectors limit the nodes that may answer; a node that matches any of them may. None given: all nodes.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=atomic
	// +optional
	NodeSelectors []metav1.LabelSelector `json:"nodeSelectors,omitempty"`

	// preferredNodeSelectors rank those nodes: the nodes with the greatest sum of
	// the weights of all that match. An address moves to a preferred node only when it is rebalanced, see IPAddressPool.
	//
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	PreferredNodeSelectors []PreferredNodeSelector `json:"preferredNodeSelectors,omitempty"`

	// interfaces on which the address is answered. None named: those with an address in the same subnet.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:items:XValidation:rule="self != 'lo'",message="has no neighbors: name the interface towards the clients"
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^/ \\t\\n]+$') && self != '.' && self != '..'",message="is not an interface name: write it as ip link shows it, without spaces or slashes"
	// +listType=set
	// +optional
	Interfaces []string `json:"interfaces,omitempty"`
}

// PreferredNodeSelector gives the nodes that it matches a weight.
type PreferredNodeSelector struct {
	// weight of the nodes that match, from 1 to 100.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`

	// preference selects nodes by label.
	//
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",message="matches every node, and so prefers none: write matchLabels or matchExpressions"
	Preference metav1.LabelSelector `json:"preference"`
}

// L2AdvertisementStatus is what the controller found.
type L2AdvertisementStatus struct {
	// conditions of the advertisement: Ready, False while a selector of it cannot be read and so matches nothing, or a
	// pool or an interface that it asks for is not there.
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
