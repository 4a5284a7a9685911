package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BGPPeer is a router to which nodes announce addresses by BGP. Every node that its nodeSelectors select has a session
// of its own with it. A change takes effect at once; what a running session cannot take over (AS, password, families,
// addresses, graceful restart, holdTime, keepaliveTime) restarts that session, and no other one. With gracefulRestart a
// change of its times loses no route.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bgpp
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.peerAddress`
// +kubebuilder:printcolumn:name="ASN",type=integer,JSONPath=`.spec.peerASN`
// +kubebuilder:printcolumn:name="BFD",type=string,JSONPath=`.spec.bfdProfile`
// +kubebuilder:printcolumn:name="Sessions",type=string,JSONPath=`.status.sessions`
// +kubebuilder:printcolumn:name="Established",type=string,JSONPath=`.status.conditions[?(@.type=="Established")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Established")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Established")].message`,priority=1
type BGPPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BGPPeerSpec   `json:"spec"`
	Status BGPPeerStatus `json:"status,omitempty"`
}

// The rules refuse errors within one object. The conditions report others: a BFDProfile or a Secret that does not
// exist, and selectors with operators that there are not.

// BGPPeerSpec is what the operator wants.
//
// +kubebuilder:validation:XValidation:rule="has(self.peerASN) || has(self.dynamicASN)",fieldPath=".peerASN",message="is missing, and so is dynamicASN: write the router's AS number as peerASN, or dynamicASN: internal or external"
// +kubebuilder:validation:XValidation:rule="!has(self.peerASN) || !has(self.dynamicASN)",fieldPath=".peerASN",message="cannot be with dynamicASN, which takes any AS: remove one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.localASN) || self.localASN != self.myASN",fieldPath=".localASN",message="is myASN: remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.localASN) || self.?dynamicASN.orValue('external') == 'external'",fieldPath=".localASN",message="is for external peers, whose AS differs from myASN and from localASN: remove it, and write the AS that the router has configured as myASN"
// +kubebuilder:validation:XValidation:rule="!has(self.localASN) || !has(self.peerASN) || self.peerASN != self.myASN && self.peerASN != self.localASN",fieldPath=".localASN",message="is for external peers, whose AS differs from myASN and from localASN: remove it, and write the AS that the router has configured as myASN"
// +kubebuilder:validation:XValidation:rule="!self.?ebgpMultiHop.orValue(false) || self.?dynamicASN.orValue('external') == 'external'",fieldPath=".ebgpMultiHop",message="is for external peers: remove it, an internal peer may be any number of hops away"
// +kubebuilder:validation:XValidation:rule="!self.?ebgpMultiHop.orValue(false) || self.?peerASN.orValue(0) != self.myASN",fieldPath=".ebgpMultiHop",message="is for external peers: remove it, an internal peer may be any number of hops away"
// +kubebuilder:validation:XValidation:rule="!self.?ebgpMultiHop.orValue(false) || !self.?ttlSecurity.orValue(false)",fieldPath=".ebgpMultiHop",message="cannot be with ttlSecurity, which is for a router on the same network: remove one of the two"
// +kubebuilder:validation:XValidation:rule="!self.?ebgpMultiHop.orValue(false) || !self.peerAddress.contains('%')",fieldPath=".ebgpMultiHop",message="cannot be with a link-local peerAddress, which is on the same network: remove it, or write another address of the router"
// +kubebuilder:validation:XValidation:rule="!has(self.passwordSecret) || !self.peerAddress.contains('%')",fieldPath=".passwordSecret",message="cannot be with a link-local peerAddress: write another address of the router"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !self.peerAddress.contains('%')",fieldPath=".sourceAddress",message="cannot be with a link-local peerAddress, whose interface determines the source: remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || self.sourceAddress.contains(':') == self.peerAddress.contains(':')",fieldPath=".sourceAddress",message="is not of the family of peerAddress: write an address of the node of that family"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !isIP(self.sourceAddress) || !isIP(self.peerAddress) || !cidr(self.sourceAddress + (self.sourceAddress.contains(':') ? '/128' : '/32')).containsIP(self.peerAddress)",fieldPath=".sourceAddress",message="is peerAddress: write an address of the node"
// +kubebuilder:validation:XValidation:rule="!has(self.keepaliveTime) || !has(self.holdTime) || duration(self.keepaliveTime).getSeconds() * 3 <= duration(self.holdTime).getSeconds()",fieldPath=".keepaliveTime",message="is more than a third of holdTime: shorten it, or lengthen holdTime"
// +kubebuilder:validation:XValidation:rule="!has(self.keepaliveTime) || has(self.holdTime)",fieldPath=".keepaliveTime",message="needs holdTime, and may be a third of it at most: write both, or none"
// +kubebuilder:validation:XValidation:rule="!has(self.restartTime) || self.?gracefulRestart.orValue(false)",fieldPath=".restartTime",message="has no effect without gracefulRestart: remove it, or write gracefulRestart: true"
type BGPPeerSpec struct {
	// myASN is the AS number of the nodes.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="self != 23456",message="is AS_TRANS, a placeholder for other AS numbers (RFC 6793): write an AS number of your own, for example one of 64512 to 65534"
	MyASN int64 `json:"myASN"`

	// peerASN is the AS number that the router must have: the same as myASN for an internal peer.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="self != 23456",message="is AS_TRANS, a placeholder for other AS numbers (RFC 6793): write the router's own AS number"
	// +optional
	PeerASN *int64 `json:"peerASN,omitempty"`

	// dynamicASN in place of peerASN takes any router whose AS number is myASN (internal), or any whose is not (external).
	//
	// +optional
	DynamicASN DynamicASN `json:"dynamicASN,omitempty"`

	// localASN is shown to this external peer in place of myASN.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="self != 23456",message="is AS_TRANS, a placeholder for other AS numbers (RFC 6793): write an AS number of your own, for example one of 64512 to 65534"
	// +optional
	LocalASN *int64 `json:"localASN,omitempty"`

	// peerAddress is the router's address. A link-local one has the interface behind a percent sign: fe80::1%eth0.
	//
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=61
	// +kubebuilder:validation:XValidation:rule="isIP(self.split('%')[0]) && (!self.contains('%') || self.matches('^[^%]+%[^%/ \\t\\n]{1,15}$'))",message="is not an address: write it like 192.0.2.1, 2001:db8::1 or fe80::1%eth0"
	// +kubebuilder:validation:XValidation:rule="self.contains('%') == self.matches('^[fF][eE][89aAbB][0-9a-fA-F]:')",message="needs the interface if it is a link-local IPv6 address, and cannot have one otherwise: write it like fe80::1%eth0, or like 2001:db8::1"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).isLinkLocalUnicast()",message="is unspecified, loopback, multicast or broadcast: write the address of the router"
	PeerAddress string `json:"peerAddress"`

	// peerPort is the TCP port of the router, to which the nodes connect; they listen on none. Default 179.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=179
	// +optional
	PeerPort int32 `json:"peerPort,omitempty"`

	// sourceAddress is the address of the node from which to connect. As nodes differ, it is for peers with
	// nodeSelectors that select one.
	//
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="is not an address: write it like 192.0.2.10 or 2001:db8::10"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).family() == 4 && ip(self).isLinkLocalUnicast()",message="is unspecified, loopback, multicast, broadcast or link-local: write an address of the node"
	// +optional
	SourceAddress string `json:"sourceAddress,omitempty"`

	// holdTime after which a silent session is dead, in full seconds from 3s; the shorter of the two sides' counts (RFC
	// 4271, 4.2). Default 90s. For a sooner end see bfdProfile.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}[smh])+$') && duration(self) >= duration('3s') && duration(self) <= duration('65535s')",message="is not a duration in full seconds between 3s and 65535s (with 0 a dead session would never end): write it like 90s or 1m30s"
	// +optional
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// keepaliveTime between two signs of life, in full seconds. Default a third of holdTime. With a router whose hold
	// time is shorter than holdTime it is a third of that one.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}[smh])+$') && duration(self) >= duration('1s')",message="is not a duration in full seconds, or less than 1s: write it like 30s"
	// +optional
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`

	// connectTime between two tries to connect, in full seconds from 1s to 65535s. Default 5s. After a minute of
	// failures it grows, to twice as long each time, up to a minute; it is itself again when the BGPPeer is changed,
	// and after a session.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('65535s')",message="is not a duration in full seconds between 1s and 65535s: write it like 10s"
	// +optional
	ConnectTime *metav1.Duration `json:"connectTime,omitempty"`

	// routerID is the BGP identifier of the nodes in this session, written as an IPv4 address. Default the node's first
	// IPv4 InternalIP. As it must differ between nodes, it is for peers with nodeSelectors that select one.
	//
	// +kubebuilder:validation:MinLength=7
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).family() == 4 && self != '0.0.0.0'",message="is not a BGP identifier: write it like 192.0.2.10, and not 0.0.0.0 (RFC 6286)"
	// +optional
	RouterID string `json:"routerID,omitempty"`

	// maxReceivedPrefixes is how many prefixes of each address family the router may announce to a node, which accepts
	// none of them but must store them (about 1 kB each). One more ends the session (RFC 4486: Cease, Maximum Number of
	// Prefixes Reached) with the reason TooManyPrefixes; it is retried after 5 minutes, then after twice as long each
	// time up to an hour, and at once when this field is changed. Default 10000.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +kubebuilder:default=10000
	// +optional
	MaxReceivedPrefixes int32 `json:"maxReceivedPrefixes,omitempty"`

	// nodeSelectors limit the nodes that have a session; a node that matches any of them has. None given: all nodes.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=atomic
	// +optional
	NodeSelectors []metav1.LabelSelector `json:"nodeSelectors,omitempty"`

	// passwordSecret names the Secret with the password of the sessions (TCP MD5, RFC 2385). It is in the namespace
	// ironlb-bgp, of type kubernetes.io/basic-auth, and the password is its key password.
	//
	// +optional
	PasswordSecret *SecretReference `json:"passwordSecret,omitempty"`

	// bfdProfile names the BFDProfile with which the path to the router is watched. None given: no BFD.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="is no name that a BFDProfile can have: write it as kubectl get bfdprofiles shows it"
	// +optional
	BFDProfile string `json:"bfdProfile,omitempty"`

	// ebgpMultiHop allows an external peer that is not on a network of the node.
	//
	// +optional
	EBGPMultiHop bool `json:"ebgpMultiHop,omitempty"`

	// ttlSecurity takes only packets with a TTL of 255, and so none from beyond the network of the node (RFC 5082). The
	// router must do so, too.
	//
	// +optional
	TTLSecurity bool `json:"ttlSecurity,omitempty"`

	// gracefulRestart asks the router to keep the routes while ironlb-bgpd is restarted (RFC 4724).
	//
	// +optional
	GracefulRestart bool `json:"gracefulRestart,omitempty"`

	// restartTime is for how long it is asked to, in full seconds from 1s to 4095s. Default 60s.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('4095s')",message="is not a duration in full seconds between 1s and 4095s: write it like 60s"
	// +optional
	RestartTime *metav1.Duration `json:"restartTime,omitempty"`

	// dualStackAddressFamily announces both families over the session, not only that of peerAddress. The next hop in
	// the other family is the node's InternalIP of that family.
	//
	// +optional
	DualStackAddressFamily bool `json:"dualStackAddressFamily,omitempty"`
}

// DynamicASN selects the AS numbers that a router may have.
//
// +kubebuilder:validation:Enum=internal;external
type DynamicASN string

const (
	// DynamicInternal takes those with myASN.
	DynamicInternal DynamicASN = "internal"
	// DynamicExternal takes those with another one.
	DynamicExternal DynamicASN = "external"
)

// SecretReference names a Secret in the namespace ironlb-bgp.
type SecretReference struct {
	// name of the Secret.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="is no name that a Secret can have: write it as kubectl get secrets shows it"
	Name string `json:"name"`
}

// BGPPeerStatus is what the controller found.
type BGPPeerStatus struct {
	// sessions counts the nodes whose session is established, of those that should have one, as 2/3.
	//
	// +optional
	Sessions string `json:"sessions,omitempty"`

	// lastBFDProfile is the BFDProfile of spec.bfdProfile that is in force while there is no such object, as JSON.
	//
	// +optional
	LastBFDProfile string `json:"lastBFDProfile,omitempty"`

	// conditions of the peer. Established: True if every node that should have a session has one, Unknown if no status
	// is known for one of them; the message names the nodes and what is wrong. Ready: False while something that the
	// spec names cannot be used.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BGPPeerList is a list of peers.
//
// +kubebuilder:object:root=true
type BGPPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPPeer `json:"items"`
}
