// Package ipvs describes IPVS virtual servers as values and computes what must change between two tables of them.
//
// It is pure: no I/O, no clock, no Kubernetes type. The kernel is reached through package ipvs/kernel.
package ipvs

import (
	"fmt"
	"net/netip"
)

// Protocol is an IP protocol number that IPVS can balance.
type Protocol uint8

// The protocols of a Kubernetes Service port, by their IANA numbers.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the name in upper case as in Kubernetes and ipvsadm.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// Key identifies a virtual server in the kernel.
type Key struct {
	Addr     netip.Addr
	Protocol Protocol
	Port     uint16
}

// Scheduler names as registered by the kernel's ip_vs_* modules.
const RoundRobin = "rr"

// Flags are the IP_VS_SVC_F_* bits that an operator sets (include/uapi/linux/ip_vs.h). The kernel's own
// IP_VS_SVC_F_HASHED (0x2) is never part of them: drivers mask it out.
type Flags uint32

const (
	// Persistent makes a client return to the same real server (session affinity).
	Persistent Flags = 0x1
	// SchedFallback of sh and mh selects another real server if the hash leads to one that takes no new connections
	// (IP_VS_SVC_F_SCHED_SH_FALLBACK, IP_VS_SVC_F_SCHED_MH_FALLBACK).
	SchedFallback Flags = 0x8
	// SchedPort of sh and mh hashes the client's port, too (IP_VS_SVC_F_SCHED_SH_PORT, IP_VS_SVC_F_SCHED_MH_PORT).
	SchedPort Flags = 0x10
	// Hashed is set by the kernel on every virtual server that it lists; it has no meaning for users.
	Hashed Flags = 0x2
)

// Settings are the fields of a virtual server that can be edited without affecting its connections.
type Settings struct {
	Scheduler string
	Flags     Flags
	// Timeout is the persistence time-out in seconds, 0 unless Persistent is set.
	Timeout uint32
}

// Forward is a forwarding method (IP_VS_CONN_F_FWD_MASK).
type Forward uint8

const (
	// Masquerade rewrites the destination address and port; the only method that can translate ports.
	Masquerade Forward = 0
	// localNode may be listed by a kernel for a real server on the node itself; it is never requested.
	localNode Forward = 1
	// Tunnel encapsulates to the real server. Nothing plans it yet; forwarding to nodes whose answers leave directly
	// will. Direct routing has no constant: it cannot translate ports and needs every Pod in the node's segment.
	Tunnel Forward = 2
)

// RealServer contains the fields of a real server that can be edited; its address and port are its identity within a
// virtual server.
type RealServer struct {
	Weight  uint32
	Forward Forward
}

// VirtualServer is a virtual server with its real servers.
type VirtualServer struct {
	Settings
	RealServers map[netip.AddrPort]RealServer
}

// Table is a full set of virtual servers: the wanted ones, or those observed in a kernel.
type Table map[Key]VirtualServer
