// Package ownership decides which node owns each VirtualIP, from the point of view of one node.
//
// There is no leader. Each speaker evaluates the same rules (docs/design/failover.md): the list of the VirtualIP ranks
// the nodes, the API objects and the endpoints determine which of them are eligible, and the members publish claims. An
// owner keeps its address: it releases it at once for a blocker, and otherwise only once a successor has taken over. A
// node acquires an address that has no owner after all before it in rank had time to. Of two owners the later in rank
// yields.
//
// An election is the decision about one VirtualIP (election.go; its steps are release, hand over, acquire). Its state
// between two decisions is an ownership. The Planner decides again only about the VirtualIPs that a change affects,
// after the data plane is planned; its Owners are the decisions, the claims to publish and the addresses to announce.
//
// It is pure: no I/O, no clock, no Kubernetes type. Its tests are those of complete plans, in package plan: scenarios,
// properties, and clusters of planners.
package ownership
