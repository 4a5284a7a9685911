// Package ipvs describes IPVS virtual servers as values and computes what must change between two tables of them.
//
// It is pure: no I/O, no clock, no Kubernetes type. The kernel is reached through package ipvs/kernel.
package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
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

// Compare orders keys by address, port and protocol.
func (k Key) Compare(l Key) int {
	return cmp.Or(k.Addr.Compare(l.Addr), cmp.Compare(k.Port, l.Port), cmp.Compare(k.Protocol, l.Protocol))
}

// String returns the key as printed by ipvsadm, "TCP 203.0.113.4:80".
func (k Key) String() string {
	return fmt.Sprintf("%v %v", k.Protocol, netip.AddrPortFrom(k.Addr, k.Port))
}

// normal returns the settings without flags that the kernel sets by itself.
func (s Settings) normal() Settings {
	s.Flags &^= Hashed
	return s
}

// String returns the settings as printed by ipvsadm, "rr persistent 10800".
func (s Settings) String() string {
	s = s.normal()
	text := s.Scheduler
	if s.Flags&Persistent != 0 {
		text += fmt.Sprintf(" persistent %d", s.Timeout)
	}
	if rest := s.Flags &^ Persistent; rest != 0 {
		text += fmt.Sprintf(" flags 0x%x", uint32(rest))
	}
	return text
}

// String returns the forwarding method as printed by ipvsadm.
func (f Forward) String() string {
	switch f {
	case Masquerade:
		return "Masq"
	case localNode:
		return "Local"
	case Tunnel:
		return "Tunnel"
	}
	return fmt.Sprintf("Forward(%d)", uint8(f))
}

// String returns forwarding method and weight.
func (r RealServer) String() string {
	return fmt.Sprintf("%v %d", r.Forward, r.Weight)
}

// Keys returns the keys of the table in order.
func (t Table) Keys() []Key {
	return slices.SortedFunc(maps.Keys(t), Key.Compare)
}

// String returns the table as printed by "ipvsadm -Ln", without the columns of counters and sorted.
func (t Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s %s %s\n", "Prot", "LocalAddress:Port", "Scheduler Flags")
	fmt.Fprintf(&b, "  %-2s %-28s %-7s %s\n", "->", "RemoteAddress:Port", "Forward", "Weight")
	for _, key := range t.Keys() {
		vs := t[key]
		fmt.Fprintf(&b, "%-4v %v %v\n", key.Protocol, netip.AddrPortFrom(key.Addr, key.Port), vs.Settings)
		for _, addr := range slices.SortedFunc(maps.Keys(vs.RealServers), netip.AddrPort.Compare) {
			rs := vs.RealServers[addr]
			fmt.Fprintf(&b, "  %-2s %-28v %-7v %d\n", "->", addr, rs.Forward, rs.Weight)
		}
	}
	return b.String()
}

// MaxWeight is the greatest weight that is read back unchanged (the netlink library reads 16 bits).
const MaxWeight = 1<<16 - 1

// Addrs returns the virtual addresses of the table.
func (t Table) Addrs() map[netip.Addr]struct{} {
	addrs := make(map[netip.Addr]struct{}, len(t))
	for key := range t {
		addrs[key.Addr] = struct{}{}
	}
	return addrs
}

// Restrict returns the part of the table whose virtual addresses are in addrs. The parts of t are shared, not copied.
//
// Given IronLB's addresses it keeps Diff from deleting foreign virtual servers. A virtual server is IronLB's if its
// address is wanted now, or has IronLB's local route, or is in the packet filter's set of addresses.
func (t Table) Restrict(addrs map[netip.Addr]struct{}) Table {
	part := make(Table)
	for key, vs := range t {
		if _, ok := addrs[key.Addr]; ok {
			part[key] = vs
		}
	}
	return part
}

// Clone returns a deep copy.
func (t Table) Clone() Table {
	c := make(Table, len(t))
	for key, vs := range t {
		vs.RealServers = maps.Clone(vs.RealServers)
		c[key] = vs
	}
	return c
}

// Equal reports whether both tables have the same content, by the same rules as Diff.
func (t Table) Equal(u Table) bool {
	return maps.EqualFunc(t, u, VirtualServer.Equal)
}

// Equal reports whether both have the same settings and real servers, by the same rules as Diff.
func (v VirtualServer) Equal(u VirtualServer) bool {
	return v.Settings.normal() == u.Settings.normal() && maps.Equal(v.RealServers, u.RealServers)
}

// Apply carries out one op on the table itself, by the rules of every driver: adding an existing object edits it,
// deleting an absent one succeeds, editing an absent one fails. On an error the table is unchanged.
func (t Table) Apply(op Op) error {
	if err := op.Validate(); err != nil {
		return fmt.Errorf("%v: %w", op, err)
	}
	vs, exists := t[op.Virtual]
	switch op.Action {
	case AddVirtual:
		if !exists {
			vs.RealServers = make(map[netip.AddrPort]RealServer)
		}
		vs.Settings = op.Settings.normal()
		t[op.Virtual] = vs
		return nil
	case DeleteVirtual:
		delete(t, op.Virtual)
		return nil
	case DeleteReal:
		delete(vs.RealServers, op.Real)
		return nil
	}
	if !exists {
		return fmt.Errorf("%v: %w", op, ErrNoVirtual)
	}
	switch op.Action {
	case EditVirtual:
		vs.Settings = op.Settings.normal()
		t[op.Virtual] = vs
	case AddReal:
		t.addReal(op, vs)
	case EditReal:
		if _, ok := vs.RealServers[op.Real]; !ok {
			return fmt.Errorf("%v: %w", op, ErrNoReal)
		}
		vs.RealServers[op.Real] = op.RealServer
	}
	return nil
}

func (t Table) addReal(op Op, vs VirtualServer) {
	if vs.RealServers == nil {
		vs.RealServers = make(map[netip.AddrPort]RealServer)
		t[op.Virtual] = vs
	}
	vs.RealServers[op.Real] = op.RealServer
}

// Validate returns why no kernel could carry out the op as specified, wrapping [ErrInvalid].
func (o Op) Validate() error {
	switch {
	case o.Action < AddVirtual || o.Action > DeleteVirtual:
		return fmt.Errorf("%w action", ErrInvalid)
	case !o.Virtual.Addr.IsValid() || o.Virtual.Addr.IsUnspecified() || o.Virtual.Addr.Is4In6():
		return fmt.Errorf("%w virtual address %v", ErrInvalid, o.Virtual.Addr)
	case o.Virtual.Protocol != TCP && o.Virtual.Protocol != UDP && o.Virtual.Protocol != SCTP:
		return fmt.Errorf("%w protocol %v", ErrInvalid, o.Virtual.Protocol)
	case o.Virtual.Port == 0:
		return fmt.Errorf("%w port 0", ErrInvalid)
	}
	switch o.Action {
	case AddVirtual, EditVirtual:
		return o.Settings.validate()
	case AddReal, EditReal, DeleteReal:
		return o.validateReal()
	}
	return nil
}

func (s Settings) validate() error {
	switch {
	case s.Scheduler == "":
		return fmt.Errorf("%w empty scheduler", ErrInvalid)
	case s.Flags&Persistent != 0 && s.Timeout == 0:
		return fmt.Errorf("%w persistence without a time-out", ErrInvalid)
	case s.Flags&Persistent == 0 && s.Timeout != 0:
		return fmt.Errorf("%w time-out without persistence", ErrInvalid)
	}
	return nil
}

func (o Op) validateReal() error {
	switch {
	case !o.Real.IsValid() || o.Real.Addr().IsUnspecified() || o.Real.Addr().Is4In6():
		return fmt.Errorf("%w real server address %v", ErrInvalid, o.Real)
	case o.Real.Addr().Is4() != o.Virtual.Addr.Is4():
		return fmt.Errorf("%w real server %v of another family than %v", ErrInvalid, o.Real.Addr(), o.Virtual.Addr)
	case o.RealServer.Weight > MaxWeight:
		return fmt.Errorf("%w weight %d, at most %d", ErrInvalid, o.RealServer.Weight, MaxWeight)
	}
	return nil
}

// NumSlots is the number of slots of a directed virtual server. A connection belongs to the slot of its hash.
const NumSlots = 256

// Slots name the node of each slot by its index in [Direct].Nodes.
type Slots [NumSlots]uint16

// Directed is the first tier of a virtual server: its connections are distributed over nodes, and each node forwards
// to its own endpoints. It is equal on all nodes with the same endpoints.
type Directed struct {
	// Slots take new connections. Before are those of the time before the last change of each slot: its node still has
	// the connections of that time. Both may be shared and must not be changed.
	Slots, Before *Slots
	// ByClient hashes the client's address without its port (session affinity).
	ByClient bool
	// Closed drops what comes through tunnels: the address is not local yet, so the node would route it.
	Closed bool
}

// Direct is the first tier of one node.
type Direct struct {
	// Self is the address of this node in Nodes.
	Self netip.Addr
	// Nodes are the addresses to which a tunnel leads, on which a tunnel ends, or from which packets in a tunnel are
	// accepted: the InternalIPs of all nodes, one each. An index never changes its node while a Slots names it. Each
	// node assigns its own indexes, so they differ between nodes. The address of an unused index is invalid.
	Nodes []netip.Addr
	// Virtuals are the directed virtual servers.
	Virtuals map[Key]Directed
}

// ReturnRoute is the route of the answers of some addresses on a node.
type ReturnRoute struct {
	// Gateway is the router, on the network of Interface. Subnets are those of Interface in the family of Gateway, which
	// need no router.
	Gateway   netip.Addr
	Interface string
	Subnets   []netip.Prefix
	// Prefixes are the addresses, all of the family of Gateway. No other ReturnRoute of the node has one of them.
	Prefixes []netip.Prefix
}

// Equal reports whether two routes are equal.
func (r ReturnRoute) Equal(s ReturnRoute) bool {
	return r.Gateway == s.Gateway && r.Interface == s.Interface && slices.Equal(r.Subnets, s.Subnets) && slices.Equal(r.Prefixes, s.Prefixes)
}

// Stats are the counters of a virtual or real server since it was added. Drivers may count connections and packets with
// 32 bits; then they start at 0 again.
type Stats struct {
	Connections, PacketsIn, PacketsOut, BytesIn, BytesOut uint64
}

// RealStats are the counters of a real server with its present connections. Active TCP connections are established, all
// others are inactive: opening, closing, or of another protocol. Persistence templates are not counted.
type RealStats struct {
	Stats
	Active, Inactive int
}

// Idle reports whether the real server has no connection.
func (s RealStats) Idle() bool { return s.Active+s.Inactive == 0 }

// Disjoint returns the prefixes masked and sorted, without those inside another one: an nftables interval set rejects
// overlapping elements. Two prefixes are disjoint, or one contains the other.
func Disjoint(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	masked := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			masked = append(masked, p.Masked())
		}
	}
	slices.SortFunc(masked, netip.Prefix.Compare) // a prefix sorts before those inside it
	for _, p := range masked {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// Errors of a driver, wrapped with the op, if the object of an op does not exist. Deleting the absent is success.
var (
	ErrNoVirtual = errors.New("no such virtual server")
	ErrNoReal    = errors.New("no such real server")
)

// ErrInvalid is wrapped by the error of an op that no kernel can carry out as specified.
var ErrInvalid = errors.New("invalid")

// Reasons why a node cannot do IPVS at all, or not with the wanted scheduler. The text of the wrapping error includes
// the remediation.
var (
	ErrNoModule    = errors.New("the kernel has no IPVS")
	ErrNoScheduler = errors.New("no such IPVS scheduler")
	ErrPermission  = errors.New("no permission to change IPVS")
)

// ErrNoTunnel is wrapped by the error of a node that cannot forward through tunnels. The text of the wrapping error
// includes the remediation.
var ErrNoTunnel = errors.New("this node cannot use tunnels")

// ErrNoTunnelIPv6 is wrapped instead if that is so for IPv6 virtual servers only.
var ErrNoTunnelIPv6 = errors.New("this node cannot use tunnels for IPv6")

// Each calls do for the ops in order and returns those that succeeded. It continues after an error, so that one failing
// object does not block the others. Only the ops that follow the failed adding of their own virtual server are skipped.
// The errors are joined; each names its op.
func Each(ops []Op, do func(Op) error) ([]Op, error) {
	var done []Op
	var errs []error
	missing := make(map[Key]bool)
	for _, op := range ops {
		if missing[op.Virtual] {
			continue
		}
		if err := do(op); err != nil {
			missing[op.Virtual] = op.Action == AddVirtual
			errs = append(errs, err)
			continue
		}
		done = append(done, op)
	}
	return done, errors.Join(errs...)
}
