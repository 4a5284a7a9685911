package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPAddressPool is a set of addresses that Services of type LoadBalancer may be given.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ippool
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Auto-Assign",type=boolean,JSONPath=`.spec.autoAssign`
// +kubebuilder:printcolumn:name="Used-v4",type=integer,JSONPath=`.status.assignedIPv4`
// +kubebuilder:printcolumn:name="Free-v4",type=integer,JSONPath=`.status.availableIPv4`
// +kubebuilder:printcolumn:name="Used-v6",type=integer,JSONPath=`.status.assignedIPv6`
// +kubebuilder:printcolumn:name="Free-v6",type=integer,JSONPath=`.status.availableIPv6`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`,priority=1
type IPAddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPAddressPoolSpec   `json:"spec"`
	Status IPAddressPoolStatus `json:"status,omitempty"`
}

// IPAddressPoolSpec is what the operator wants.
type IPAddressPoolSpec struct {
	// addresses of the pool: a CIDR (192.0.2.0/28), a range (192.0.2.10-192.0.2.20) or a single address, IPv4 and IPv6 mixed
	// as you like. They are handed out in the order given, lowest first.
	//
	// +kubebuilder:validation:MinItems=1
	// +listType=atomic
	Addresses []string `json:"addresses"`

	// autoAssign false keeps the pool for Services that ask for it by name or for one of its addresses.
	//
	// +kubebuilder:default=true
	// +optional
	AutoAssign *bool `json:"autoAssign,omitempty"`
}

// IPAddressPoolStatus is what the controller found.
type IPAddressPoolStatus struct {
	// assignedIPv4 is how many IPv4 addresses Services hold.
	AssignedIPv4 int64 `json:"assignedIPv4"`
	// assignedIPv6 is how many IPv6 addresses Services hold.
	AssignedIPv6 int64 `json:"assignedIPv6"`
	// availableIPv4 is how many IPv4 addresses are free, at most 9223372036854775807.
	AvailableIPv4 int64 `json:"availableIPv4"`
	// availableIPv6 is how many IPv6 addresses are free, at most 9223372036854775807.
	AvailableIPv6 int64 `json:"availableIPv6"`

	// conditions of the pool: Ready, Overlapping, Exhausted.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPAddressPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type IPAddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPAddressPool `json:"items"`
}
