// Package plan computes the desired state of a node from a View.
//
// A Desired has three parts, each of its own package: speaker/forwarding plans the data plane, then speaker/ownership
// decides who owns each VirtualIP, and speaker/routes plans the BGP sessions and routes. The last two read the planned
// data plane, and not each other. Changed names what may differ from the plan before.
//
// The Planner is incremental: the cost follows the change. Its result equals that of Make, which plans from nothing.
// The tests of this package plan complete clusters.
//
// It is pure: no I/O, no clock, no Kubernetes type. The same View, options and time give the same Desired, regardless
// of the order in which the View was filled.
package plan
