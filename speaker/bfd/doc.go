// Package bfd watches the paths to BGP peers by Bidirectional Forwarding Detection: asynchronous mode (RFC 5880) over one hop
// (RFC 5881) and over several (RFC 5883), without echo, demand mode of its own, or authentication.
//
// The Core is pure: configurations, packets and times go in; packets, changes of state and the time of the next turn come out.
// The Driver gives it sockets and a thread that goes before others; all that may block (the log, the caller's function) is
// done beside that thread.
//
// Nothing is sent when the process ends: the other side finds out by itself, or the next process takes over before it does. A session
// that is no longer wanted is told to the other side (AdminDown), which so need not take the path for dead.
package bfd
