// Package plan computes the desired state of a node and the addresses that it announces.
//
// It is pure: no I/O, no clock, no Kubernetes type. The same View and node name give the same Desired, regardless of
// the order in which the View was filled.
package plan
