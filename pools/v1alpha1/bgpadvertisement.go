package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BGPAdvertisement selects the addresses to announce by BGP, the nodes and peers for them, and their attributes. Every
// node that can forward announces, and the routers spread the traffic. Several for one prefix and peer: their
// communities are united, and they must have the same localPref. Other aggregation lengths make other prefixes, each
// with its own attributes.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bgpadv
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.ipAddressPools`
// +kubebuilder:printcolumn:name="Peers",type=string,JSONPath=`.spec.peers`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Length",type=integer,JSONPath=`.spec.aggregationLength`,priority=1
// +kubebuilder:printcolumn:name="LengthV6",type=integer,JSONPath=`.spec.aggregationLengthV6`,priority=1
// +kubebuilder:printcolumn:name="LocalPref",type=integer,JSONPath=`.spec.localPref`,priority=1
// +kubebuilder:printcolumn:name="Communities",type=string,JSONPath=`.spec.communities`,priority=1
type BGPAdvertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Spec   BGPAdvertisementSpec   `json:"spec,omitempty"`
	Status BGPAdvertisementStatus `json:"status,omitempty"`
}

// BGPAdvertisementSpec is what the operator wants.
type BGPAdvertisementSpec struct {
	// aggregationLength of the IPv4 prefix that is announced in place of an address, from 1 to 32. It stays announced
	// as long as an address under it is. Default 32: each address by itself.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	// +kubebuilder:default=32
	// +optional
	AggregationLength int32 `json:"aggregationLength,omitempty"`

	// aggregationLengthV6 is the same for IPv6, from 1 to 128. Default 128.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	// +kubebuilder:default=128
	// +optional
	AggregationLengthV6 int32 `json:"aggregationLengthV6,omitempty"`

	// localPref is sent to internal peers, which prefer the route with the greatest, and never to external ones (RFC
	// 4271, 5.1.5). None given: 100.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +optional
	LocalPref *int64 `json:"localPref,omitempty"`

	// communities that the routes carry: 65000:1, large:65000:1:2, or the name of one in a Community.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^((0|[1-9][0-9]{0,4}):(0|[1-9][0-9]{0,4})|large(:(0|[1-9][0-9]{0,9})){3}|[a-zA-Z_]([-_.a-zA-Z0-9]*[a-zA-Z0-9_])?)$')",message="is neither a community nor the name of one: write it like 65000:1 or large:65000:1:2, or as a Community names it"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('^(large(:[0-9]{1,10}){3}|[0-9]{1,5}:[0-9]{1,5})$') || self.split(':').all(n, n == 'large' || int(n) <= (self.startsWith('large:') ? 4294967295 : 65535))",message="has a number that is too large: the two of a community go up to 65535, the three of a large one to 4294967295"
	// +listType=set
	// +optional
	Communities []string `json:"communities,omitempty"`

	// peers that receive the routes, by the names of their BGPPeers. None named: all.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="is no name that a BGPPeer can have: write it as kubectl get bgpp shows it"
	// +listType=set
	// +optional
	Peers []string `json:"peers,omitempty"`

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
	// Services. An address that Services share is announced only if every one of them is meant.
	//
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ServiceSelectors []metav1.LabelSelector `json:"serviceSelectors,omitempty"`

	// nodeSelectors limit the nodes that announce; a node that matches any of them does. None given: all nodes.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=atomic
	// +optional
	NodeSelectors []metav1.LabelSelector `json:"nodeSelectors,omitempty"`
}

// BGPAdvertisementStatus is what the controller found.
type BGPAdvertisementStatus struct {
	// conditions of the advertisement: Ready, False while something of it cannot be used as it is written: a selector
	// that cannot be read, a peer, pool or community that does not exist, nodeSelectors that match no node, another
	// advertisement with another localPref for the same prefix.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// unserved are the addresses covered by the advertisement that serve no traffic, by reason: no node announces them, or
	// they are announced and no Service has an endpoint.
	//
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=reason
	// +optional
	Unserved []UnservedStatus `json:"unserved,omitempty"`
}

// BGPAdvertisementList is a list of advertisements.
//
// +kubebuilder:object:root=true
type BGPAdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPAdvertisement `json:"items"`
}
