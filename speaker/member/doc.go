// Package member reports which other speakers are alive, on which segment, and what each claims of its VirtualIPs,
// without the API server (docs/design/failover.md "Liveness", docs/design/liveness.md).
//
// # Core
//
// Core holds the full state. It does no I/O, has no clock and starts nothing, so the same calls produce the same bytes,
// and tests and test/sim run hundreds of them under a virtual clock.
//
// In: the datagrams of other nodes (Receive) and the time (Tick); this node's claims (Publish), interfaces (SetLinks),
// the other Nodes (SetPeers), keys and certificate authorities; whether datagrams to the group could be sent (Sent); and
// what hosts answer where no speaker is received (SetAnswers) and in place of a speaker that is replaced (Answered).
//
// Out: the datagrams to send (Tick, Goodbye); when it must be called next, and which datagrams may wait until then (Next,
// Urgent, Attentive); the state of the members and their claims with what has changed (Members), which speakers are
// received (Received), which neighbors to probe (Away), whether a fence is in force (Fenced), and counters.
//
// A file has one topic: core.go the configuration, peer.go the state of another node and of an interface, receive.go and
// send.go the datagrams, wire.go their format and signature, tick.go silence and this node's own faults, evidence.go what
// nodes report of each other, claims.go the journal of claims, retained.go speakers that are replaced, results.go what
// comes out.
//
// # Detector
//
// Detector runs a Core on sockets, in one goroutine with a thread of its own; its methods put their arguments into an
// inbox and do not wait. detector.go has the methods, loop.go the goroutine, socket.go the sockets, host.go the
// interfaces and neighbors of this node, health.go the thread's priority and stalls.
//
// # What may change
//
// The format of the datagrams may change with a new version only; see wire.go. Times, limits and the number of helpers
// may change freely: each node advertises its own interval and dead time. A node must never hold a claim silently for
// longer than its fence, accept anything before the tag is verified, or evaluate a silence in which it did not run.
package member
