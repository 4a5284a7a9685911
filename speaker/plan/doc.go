// Package plan computes the desired state of a node: its data plane, and with it ownership and routes.
//
// The data plane is planned by Service. Its accepted addresses (admission.go) and ports become virtual servers with
// filter elements and local addresses (service.go); the EndpointSlices become lists of real servers (drain.go), which
// exclude unreachable nodes first, then follow conditions and topology hints (endpoints.go), and keep draining
// endpoints. Of several Services that claim the same virtual server the oldest wins (claims.go).
//
// The Planner is incremental: it plans the touched Services, then has speaker/ownership decide about the VirtualIPs
// that these affect, and then plans the BGP routes. Its result equals that of Make, which plans from nothing.
//
// It is pure: no I/O, no clock, no Kubernetes type. The same View, options and time give the same Desired, regardless
// of the order in which the View was filled.
package plan
