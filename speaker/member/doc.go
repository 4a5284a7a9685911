// Package member tells which other speakers are alive, on which segment, and what each says of its VirtualIPs, without the
// API server (docs/design/failover.md "Liveness", docs/design/liveness.md).
//
// Core holds all of it and does no I/O: it is given datagrams, the time and what this node wants to say, and gives back the
// datagrams to send. Detector runs it on sockets.
package member
