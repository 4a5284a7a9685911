package v1alpha1

// What the controllers read and write on a Service.
const (
	// AnnotationAllocatedFrom names the pools of a Service's addresses, in the order of the addresses, separated by commas.
	// Written by the controller.
	AnnotationAllocatedFrom = "ironlb.io/allocated-from"
	// AnnotationPool asks for an address out of the named pool.
	AnnotationPool = "ironlb.io/ip-pool"
	// AnnotationAddresses asks for exactly these addresses, separated by commas.
	AnnotationAddresses = "ironlb.io/ips"
)

// Condition types of a VirtualIP.
const (
	// ConditionAnnounced is True while status.node answers for the addresses.
	ConditionAnnounced = "Announced"
	// ConditionNoEligibleNode is True while no node may or can answer.
	ConditionNoEligibleNode = "NoEligibleNode"
	// ConditionKubeProxyConflict is True while kube-proxy and the speaker get into each other's way on the node that writes
	// the status: the message says what to change. It is absent otherwise.
	ConditionKubeProxyConflict = "KubeProxyConflict"
)
