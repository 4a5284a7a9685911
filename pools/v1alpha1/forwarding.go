package v1alpha1

import (
	"fmt"
	"strings"
)

// AnnotationForwarding chooses how a LoadBalancer address leads to a Pod: [ForwardingPod] or [ForwardingNodePort].
const AnnotationForwarding = "ironlb.io/forwarding"

// Forwarding is how a LoadBalancer address leads to a Pod.
type Forwarding string

const (
	// ForwardingPod sends straight to the endpoints.
	ForwardingPod Forwarding = "pod"
	// ForwardingNodePort sends to the nodes' NodePorts.
	ForwardingNodePort Forwarding = "nodeport"
)

// ParseForwarding reads the annotation; one that is not there, or empty, means [ForwardingPod].
func ParseForwarding(text string) (Forwarding, error) {
	switch f := Forwarding(strings.TrimSpace(text)); f {
	case "":
		return ForwardingPod, nil
	case ForwardingPod, ForwardingNodePort:
		return f, nil
	default:
		return ForwardingPod, fmt.Errorf("%q is no way of forwarding: give pod or nodeport", string(f))
	}
}
