// Package report has the values that a speaker publishes: VIPStatus for each VirtualIP that it reports, and NodeStatus
// for its node, with its interfaces, the other members, its BGP sessions and the addresses that it could not program.
//
// speaker/status composes them from the plan and its outcome; speaker/kube writes them to the API server. Every reason
// is a view.Reason. A value is complete: what it does not contain no longer holds.
package report
