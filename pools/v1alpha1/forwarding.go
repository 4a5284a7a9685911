package v1alpha1

import (
	"cmp"
	"fmt"
	"strings"
)

// AnnotationForwarding chooses how a LoadBalancer address leads to a Pod: [ForwardingPod], [ForwardingNodePort] or
// [ForwardingDirect].
const AnnotationForwarding = "ironlb.io/forwarding"

// Forwarding is how a LoadBalancer address leads to a Pod.
type Forwarding string

const (
	// ForwardingPod sends straight to the endpoints.
	ForwardingPod Forwarding = "pod"
	// ForwardingNodePort sends to the nodes' NodePorts.
	ForwardingNodePort Forwarding = "nodeport"
	// ForwardingDirect sends to a node with an endpoint, through a tunnel; the answers leave from that node.
	ForwardingDirect Forwarding = "direct"
)

// ParseForwarding reads the annotation; one that is not there, empty or wrong means the default of the cluster, which
// is [ForwardingPod] if empty.
func ParseForwarding(text string, byDefault Forwarding) (Forwarding, error) {
	byDefault = cmp.Or(byDefault, ForwardingPod)
	switch f := Forwarding(strings.TrimSpace(text)); f {
	case "":
		return byDefault, nil
	case ForwardingPod, ForwardingNodePort, ForwardingDirect:
		return f, nil
	default:
		return byDefault, fmt.Errorf("%q is no way of forwarding: give pod, nodeport or direct", string(f))
	}
}

// ParseDefaultForwarding reads the default of the cluster: only a Service itself can request NodePorts.
func ParseDefaultForwarding(text string) (Forwarding, error) {
	switch f := Forwarding(text); f {
	case ForwardingPod, ForwardingDirect:
		return f, nil
	}
	return ForwardingPod, fmt.Errorf("%q is no default way of forwarding: give pod or direct", text)
}
