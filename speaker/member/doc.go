// Package member reports which other speakers are alive, on which segment, and what each claims of its VirtualIPs,
// without the API server (docs/design/failover.md "Liveness", docs/design/liveness.md).
//
// Core holds the full state and does no I/O: its inputs are datagrams, the time and this node's claims; its outputs are
// the datagrams to send. Detector runs it on sockets.
package member
