package v1alpha1

import (
	"cmp"
	"fmt"
	"slices"
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

// AnnotationScheduler chooses how a Service's connections are spread over its endpoints, in the form of
// [ParseScheduler].
const AnnotationScheduler = "ironlb.io/scheduler"

// Scheduler is a scheduler of the kernel's IPVS. Fallback and Port are for sh and mh only.
//
// +kubebuilder:object:generate=false
type Scheduler struct {
	Name string
	// Fallback takes another endpoint where the hash leads to one that takes no new connections.
	Fallback bool
	// Port hashes the client's port as well as its address.
	Port bool
}

// schedulers are those that Linux has (net/netfilter/ipvs/ip_vs_*.c).
var schedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh"}

// ParseScheduler reads the name of a scheduler, and for sh and mh the flags that are to be set after commas:
//
//	rr
//	mh,fallback        consistent hashing by the client's address alone, the same on every node
//	sh,none            no flag at all
//
// Without any flag mh has both and sh has fallback: else an endpoint that drains would have its share of connections
// refused (ip_vs_mh.c, ip_vs_sh.c: a hash that leads to weight 0).
func ParseScheduler(text string) (Scheduler, error) {
	name, rest, given := strings.Cut(strings.TrimSpace(text), ",")
	s := Scheduler{Name: strings.TrimSpace(name)}
	hashes := s.Name == "sh" || s.Name == "mh"
	switch {
	case !slices.Contains(schedulers, s.Name):
		return Scheduler{}, fmt.Errorf("%q is no scheduler: give one of %s", s.Name, strings.Join(schedulers, ", "))
	case !given:
		s.Fallback, s.Port = hashes, s.Name == "mh"
		return s, nil
	case !hashes:
		return Scheduler{}, fmt.Errorf("%s has no flags: give %q alone", s.Name, s.Name)
	case strings.TrimSpace(rest) == "none":
		return s, nil
	}
	for _, flag := range strings.Split(rest, ",") {
		switch flag = strings.TrimSpace(flag); flag {
		case "fallback":
			s.Fallback = true
		case "port":
			s.Port = true
		default:
			return Scheduler{}, fmt.Errorf("%q is no flag of %s: give fallback, port, both, or none", flag, s.Name)
		}
	}
	return s, nil
}

// String returns the scheduler in the form that [ParseScheduler] reads, with its flags.
func (s Scheduler) String() string {
	text := s.Name
	if s.Name != "sh" && s.Name != "mh" {
		return text
	}
	if s.Fallback {
		text += ",fallback"
	}
	if s.Port {
		text += ",port"
	}
	if text == s.Name {
		text += ",none"
	}
	return text
}
