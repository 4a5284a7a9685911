package v1alpha1

import (
	"fmt"
	"slices"
	"strings"
)

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
