package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BFDProfile has the timers with which the path to a BGP peer is watched (RFC 5880): a path that is dead ends the
// session at once. The router receives them, and the slower interval counts. A change is taken over without an
// interruption.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bfdp
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Receive",type=integer,JSONPath=`.spec.receiveInterval`
// +kubebuilder:printcolumn:name="Transmit",type=integer,JSONPath=`.spec.transmitInterval`
// +kubebuilder:printcolumn:name="Multiplier",type=integer,JSONPath=`.spec.detectMultiplier`
// +kubebuilder:printcolumn:name="Passive",type=boolean,JSONPath=`.spec.passiveMode`
// +kubebuilder:printcolumn:name="MinimumTTL",type=integer,JSONPath=`.spec.minimumTtl`,priority=1
type BFDProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Spec BFDProfileSpec `json:"spec,omitempty"`
}

// BFDProfileSpec is what the operator wants.
type BFDProfileSpec struct {
	// receiveInterval is the least time between two packets from the router that the node takes, in milliseconds from
	// 10 to 60000. Default 300.
	//
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	// +kubebuilder:default=300
	// +optional
	ReceiveInterval int32 `json:"receiveInterval,omitempty"`

	// transmitInterval is the least time between two packets of the node, in milliseconds from 10 to 60000. Default 300.
	//
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	// +kubebuilder:default=300
	// +optional
	TransmitInterval int32 `json:"transmitInterval,omitempty"`

	// detectMultiplier is how many packets in a row must be missing before the other side takes the path for dead, from
	// 2 to 255. Default 3.
	//
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=255
	// +kubebuilder:default=3
	// +optional
	DetectMultiplier int32 `json:"detectMultiplier,omitempty"`

	// passiveMode sends nothing before the router's first packet has come.
	//
	// +optional
	PassiveMode bool `json:"passiveMode,omitempty"`

	// minimumTtl that packets of a session over several hops must have left, from 1 to 255. Such are the sessions of
	// peers with ebgpMultiHop (default 254), and of internal peers whose profile names it. Sessions of all other peers
	// are over one hop, where it is 255 (RFC 5881, 5); the condition Ready of the BGPPeer reports that it has no effect
	// there. Name it, as 255, for an external peer with ttlSecurity that runs FRR: for such a neighbor FRR has BFD on
	// the UDP port of several hops, 4784.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	// +optional
	MinimumTTL *int32 `json:"minimumTtl,omitempty"`
}

// BFDProfileList is a list of profiles.
//
// +kubebuilder:object:root=true
type BFDProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BFDProfile `json:"items"`
}
