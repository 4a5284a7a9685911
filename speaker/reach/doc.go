// Package reach finds the nodes that this node cannot reach, so that no new connection is sent to their endpoints
// (docs/design/unreachable.md).
//
// The speaker of another node that is not received any more is no proof: it may have crashed, or be replaced. So the
// kernel of that node is asked as well, which does not depend on any process of ours. A node is unreachable once its
// speaker is not received and its kernel, which answered while the speaker was received, does not answer any more.
// Where this node may be the one that is cut off, its gateways are asked, too.
//
// A Core decides and does no I/O; a Prober runs it on sockets.
package reach
