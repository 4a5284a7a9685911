package dataplane

import (
	"context"
	"errors"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/view"
)

// Drivers change and observe the node's state.
type Drivers struct {
	VirtualServers VirtualServers
	Filter         Filter
	Addresses      Addresses
	Sysctls        Sysctls
	// The drivers below may be nil: their part of the plan is then skipped.
	ClusterInternal ClusterInternal
	Direct          Direct
	ReturnRoutes    ReturnRoutes
	Conntrack       Conntrack
	HealthPorts     HealthPorts
	Checks          Checks
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

// Verifier is a VirtualServers that notifies of no change by another program.
type Verifier interface {
	// Count returns the number of virtual servers of IPv4, which a flush changes, at no cost. Other programs' may be
	// included.
	Count() (int, error)
	// Same reports whether a virtual server exists exactly as given, at a cost independent of the number of others.
	Same(ipvs.Key, ipvs.VirtualServer) (bool, error)
}

// Watcher is a VirtualServers that detects changes by other programs itself, at no cost while there are none.
type Watcher interface {
	// Generation returns a number that is different after another program may have changed virtual servers, or an own
	// change failed: they are then to be listed. watched is false if the driver does not detect it.
	Generation() (n uint64, watched bool, err error)
}

// ClusterInternal holds the virtual servers for clients on this node (Pods and processes), in place of those of
// VirtualServers. IronLB owns all of them.
type ClusterInternal interface {
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

// affecting returns the errors that affect an address.
func (e SysctlErrors) affecting(addr netip.Addr) error {
	if addr.Is4() {
		return e.All
	}
	return errors.Join(e.All, e.IPv6)
}

// arp returns why the kernel itself may answer for an address.
func (e SysctlErrors) arp(addr netip.Addr) error {
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
	Set(map[pools.ServiceKey]forwarding.HealthPort) map[pools.ServiceKey]error
}

// Checks are the probes of other nodes and of new endpoints. Their results appear in the View.
type Checks interface {
	// Set replaces the full set and keeps the map.
	Set(map[view.Check]struct{})
}
