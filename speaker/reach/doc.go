// Package reach detects the nodes that this node cannot reach, so that no new connection is sent to their endpoints
// (docs/design/unreachable.md).
//
// A speaker that is not received any more is no proof: it may have crashed, or be replaced. So the kernel of that node
// is probed as well, which does not depend on any process of the speaker. A node is unreachable once its speaker is not
// received and its kernel, which answered while the speaker was received, does not answer any more. If this node itself
// may be cut off, its gateways are probed, too.
//
// A Core evaluates and does no I/O; a Prober runs it on sockets.
package reach
