// Package view has the values that the parts of the speaker share.
//
// A View is what one node observes: the API objects, its own interfaces and addresses, the results of probes, the
// other members with their claims, and which nodes are unreachable. Touched names what changed in it. speaker/kube, the
// membership and the drivers fill a View; speaker/forwarding, speaker/ownership and speaker/routes compute from it.
//
// A Reason is why a node does or does not do something. Claims are what the members exchange. DataPlane and Served are
// what the planned data plane makes of a Service, as far as announcements depend on it.
//
// The package has values only: no decision, no I/O, no clock.
package view
