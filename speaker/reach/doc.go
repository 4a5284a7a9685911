// Package reach detects the nodes that this node cannot reach, so that no new connection is sent to their endpoints
// (docs/design/unreachable.md).
//
// A speaker that is not received any more is no proof: it may have crashed, or be replaced. So the kernel of that node
// is probed as well, which does not depend on any process of the speaker. A node is unreachable once its speaker is not
// received and its kernel, which answered while the speaker was received, does not answer any more. If this node itself
// may be cut off, its gateways are probed, too.
//
// In: the nodes and their InternalIPs (SetNodes), this node's gateways (SetGateways), and from speaker/member the
// received speakers and the interfaces without any (SetReceived). Out: view.Reachability (State), with Wake on a change.
//
// A Core (core.go) evaluates and does no I/O. A Prober (prober.go) runs it on sockets, with two witnesses (witness.go):
// ICMP echo, and ARP or neighbor discovery by speaker/neighbor.
//
// The intervals and limits may change; how long a decision takes is documented and checked by test/sim. A node must
// never be unreachable by silence alone, without a witness that had answered before, or while this node may be cut off.
package reach
