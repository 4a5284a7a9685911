// Package plan decides what a node must hold and which addresses it answers for.
//
// It is pure: no I/O, no clock, no Kubernetes type. The same View and node name give the same Desired, in whatever order
// the View was filled.
package plan
