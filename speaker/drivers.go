package speaker

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
)

// Source provides the observed state of the cluster.
type Source interface {
	// Observe returns the View and what changed in it since the last call. ok is false until every informer has synced
	// once. The caller owns the View until it calls Observe again.
	Observe() (view *plan.View, touched plan.Touched, ok bool)
}

// Node holds the drivers of the node's state.
type Node struct {
	VirtualServers VirtualServers
	Filter         Filter
	Addresses      Addresses
	Sysctls        Sysctls
	// The drivers below may be nil: their part of the plan is then skipped.
	Inside      Inside
	Conntrack   Conntrack
	HealthPorts HealthPorts
	Checks      Checks
	Retainer    Retainer
	Blackholes  Blackholes
}

// VirtualServers is the kernel's IPVS, or another forwarder in its place.
type VirtualServers interface {
	// ListOf returns the virtual servers of these addresses.
	ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error)
	// Virtuals returns all virtual servers without their real servers, which costs far less.
	Virtuals() (map[ipvs.Key]ipvs.Settings, error)
	// Apply carries out the ops in order, continues after an error and returns those done.
	Apply(ops []ipvs.Op) (done []ipvs.Op, err error)
}

// Counter is a VirtualServers that counts its entries at no cost, which reveals a flush. The count need not be
// complete, but must always include the same entries.
type Counter interface {
	Count() (int, error)
}

// Inside holds the virtual servers for clients on this node (Pods and processes), in place of those of VirtualServers.
// IronLB owns all of them.
type Inside interface {
	VirtualServers
	// SetPods sets which sources count as Pods.
	SetPods(ipvs.PodSources) error
}

// Filter is IronLB's tables of the packet filter.
type Filter interface {
	// List returns the contents of the tables, including those of an earlier process.
	List(ctx context.Context) (ipvs.Filter, error)
	// Check reports whether the tables are still as this process wrote them.
	Check(ctx context.Context) (intact bool, err error)
	// Build rebuilds the tables and returns the number of elements written.
	Build(ctx context.Context, want ipvs.Filter) (elements int, err error)
	// Update changes elements of built tables, all or none. Its cost is proportional to their number.
	Update(ctx context.Context, changes []ipvs.FilterChange) (elements int, err error)
	// Remove deletes the tables.
	Remove(ctx context.Context) error
}

// Addresses are the virtual addresses that are local to the node.
type Addresses interface {
	// List returns the owned addresses, including those of an earlier process, and the node's others. None of the
	// others may become a virtual address: the node itself would be cut off.
	List() (ours, others map[netip.Addr]struct{}, err error)
	// Add reports whether the address was added.
	Add(netip.Addr) (bool, error)
	// Remove removes an owned address, and reports whether it did.
	Remove(netip.Addr) (bool, error)
}

// Retainer makes the kernel answer ARP and NDP while no speaker runs.
type Retainer interface {
	// Retain makes the kernel answer for owned addresses on their interfaces until Release or the end of the lifetime,
	// even if the process dies. It is all or nothing.
	Retain(addrs map[netip.Addr][]string, lifetime time.Duration) error
	// Retained returns the retained addresses, including those of an earlier process.
	Retained() (map[netip.Addr]struct{}, error)
	// Release ends the retention. It also succeeds for other addresses.
	Release(addrs map[netip.Addr]struct{}) error
}

// Blackholes are routes that drop packets for unallocated addresses of a prefix.
type Blackholes interface {
	// Blackholes returns the owned blackholes, including those of an earlier process.
	Blackholes() (map[netip.Prefix]struct{}, error)
	// AddBlackhole reports whether the blackhole was added.
	AddBlackhole(netip.Prefix) (bool, error)
	// RemoveBlackhole reports whether the blackhole existed.
	RemoveBlackhole(netip.Prefix) (bool, error)
}

// Sysctls are the kernel settings that forwarding and address announcement rely on.
type Sysctls interface {
	// Apply sets those that differ and returns them as "key=value". ipv6 is set if IPv6 addresses are served.
	Apply(ipv6 bool) (changed []string, wrong SysctlErrors)
}

// SysctlErrors are the errors of kernel settings by affected addresses. A new address is not programmed until its
// settings are right.
type SysctlErrors struct {
	// All affects every address, IPv6 those of IPv6, Limits none: the sizes and timeouts of conntrack.
	All, IPv6, Limits error
	// ARP affects which node answers for an IPv4 address: the kernel may answer for any local address. It affects no
	// route.
	ARP error
}

// of returns the errors that affect an address.
func (e SysctlErrors) of(addr netip.Addr) error {
	if addr.Is4() {
		return e.All
	}
	return errors.Join(e.All, e.IPv6)
}

// answers returns why the kernel itself may answer for an address.
func (e SysctlErrors) answers(addr netip.Addr) error {
	if addr.Is4() {
		return e.ARP
	}
	return nil
}

// sameFor reports whether both sets of errors permit the same addresses to be added and announced.
func (e SysctlErrors) sameFor(f SysctlErrors) bool {
	return (e.All == nil) == (f.All == nil) && (e.IPv6 == nil) == (f.IPv6 == nil) && (e.ARP == nil) == (f.ARP == nil)
}

// Conntrack is the kernel's connection tracking table.
type Conntrack interface {
	// Clean deletes the misleading entries of these virtual servers and returns their number. For UDP these are entries
	// to anything but a real server with a weight. For TCP these are entries to anything but a real server, and
	// handshakes that await the first answer of one without a weight.
	Clean(ctx context.Context, table ipvs.Table) (deleted int, err error)
}

// HealthPorts serve the healthCheckNodePorts of Services.
type HealthPorts interface {
	// Set replaces the served set and returns an error for each port that it cannot serve. Another call retries.
	Set(map[pools.ServiceKey]plan.HealthPort) map[pools.ServiceKey]error
}

// Checks are the probes of other nodes and of new endpoints. Their results appear in the View.
type Checks interface {
	// Set replaces the full set and keeps the map.
	Set(map[plan.Check]struct{})
}

// Announcer answers ARP and NDP for addresses.
type Announcer interface {
	// Announce replaces the full set and returns the interfaces on which each address is announced. An address that is
	// still being probed is absent. The end of its probe triggers the loop.
	Announce(map[netip.Addr]plan.Announcement) (map[netip.Addr][]string, error)
	// Conflicts are the addresses of the set for which another host answers. A change triggers the loop.
	Conflicts() map[netip.Addr]plan.Conflict
	// SetPeers sets the hardware addresses that belong to members, by node.
	SetPeers(macs map[[6]byte]string)
}

// BGP announces addresses to routers.
type BGP interface {
	// Set publishes a change; the first change is a full state. It does not block. The last state outlives this
	// process.
	Set(plan.BGPChange)
	// Sessions returns the state of the sessions, by the name of the peer. A session may be absent until it starts. A
	// change triggers the loop.
	Sessions() map[string]plan.Session
	// Blank reports whether the BGP daemon is running and no process has configured a peer on it. A change triggers the
	// loop.
	Blank() bool
}

// Detector reports the liveness and the claims of the other members, without the API server. A change triggers the
// loop.
type Detector interface {
	// Observe returns the observed members, the nodes whose liveness changed since the last call, and the VirtualIPs
	// with a changed claim. The Members are never modified afterwards.
	Observe() (members plan.Members, nodes map[string]struct{}, claims map[plan.VIPID]struct{})
	// Say publishes the complete state of this node to the other members. It does not block.
	Say(plan.Word)
	// SetSegments sets the interfaces on which to receive other members.
	SetSegments(interfaces []string)
	// SetPeers sets the nodes of the cluster, with their addresses on the node network.
	SetPeers(map[string][]netip.Addr)
	// Retain announces that this process is about to end, and for how long the kernel answers for its last claims.
	Retain(time.Duration)
	// Settled reports that every address retained by an earlier process has been decided on.
	Settled()
}

// Reach finds the nodes that this one cannot reach. It triggers the loop when State returns something new.
type Reach interface {
	// SetNodes sets the other nodes, with their addresses on the node network.
	SetNodes(map[string][]netip.Addr)
	// SetGateways sets the gateways of this node.
	SetGateways([]netip.Addr)
	// State returns what was found. It is never modified afterwards.
	State() plan.Reachability
}

// Reporter publishes the status of VirtualIPs. Report takes the full set each time, keeps it, and does not block.
type Reporter interface {
	Report(map[string]plan.Status)
}

// NodeReporter publishes the status of this node. ReportNode keeps its argument and does not block.
type NodeReporter interface {
	ReportNode(plan.NodeStatus)
}

// Progress receives the progress of the node, for health checks of the service proxy.
type Progress interface {
	// Applied records that every change before this time is applied.
	Applied(before time.Time)
	// SetNode records whether the Node may receive traffic.
	SetNode(eligible bool)
}
