// Package bfd monitors the paths to BGP peers by Bidirectional Forwarding Detection: asynchronous mode (RFC 5880) over
// one hop (RFC 5881) and over several (RFC 5883), without echo, demand mode of its own, or authentication.
//
// The Core is pure: configurations, packets and times are its input; packets, state changes and the time of the next
// tick are its output. The Driver provides sockets and a thread with priority over others. All that may block (the log,
// the caller's function) runs outside that thread.
//
// Nothing is sent when the process ends: the remote system detects that by itself, unless the next process takes over
// before. A session that is removed sends AdminDown, so that the remote system does not consider the path dead.
package bfd
