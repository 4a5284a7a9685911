// Package dataplane programs one node: virtual servers, the packet filter, virtual addresses, sysctls, health check
// ports and probes.
//
// A DataPlane owns the observed state of the node. For each reconcile it is given the plan (Update), lists the node if
// that is due (Observe), and applies what the Work names (Program), in an order that never leaves an address reachable
// without its virtual servers and filter elements. Failed operations stay pending until TakeFailed. Evaluate records
// which addresses the node forwards; the announcements follow it.
//
// Only state with IronLB's mark is deleted: its addresses, the virtual servers of these addresses, and its tables.
package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// Config of a DataPlane.
type Config struct {
	// Record receives each change of the node, with the attributes of its log line.
	Record func(level slog.Level, action string, attrs ...any)
	// Destroyed, if set, is called when owned virtual servers are missing or changed. It must not block.
	Destroyed func()
}

// Inputs of one reconcile.
type Inputs struct {
	Desired *plan.Desired
	// VIPs are the VirtualIPs of the View.
	VIPs map[string]view.VIP
	// Reason of the changes, for the log.
	Reason view.Reason
	// Unreachable is set while nodes are unreachable, NodeDied in the reconcile that observes one first.
	Unreachable, NodeDied bool
	// Published reports whether this node still announces an address by ARP or NDP, or probes it, Routed whether it
	// does so by BGP.
	Published, Routed func(netip.Addr) bool
	// RoutesAdopted is set while routes of an earlier process may attract packets to any address.
	RoutesAdopted bool
}

// DataPlane is the node's forwarding state. One goroutine owns it.
type DataPlane struct {
	cfg     Config
	drivers Drivers
	in      Inputs

	// known is the state of the node after the last reconcile, nil if that is uncertain.
	known *state
	// lastFilter outlives known: it records what IronLB owns.
	lastFilter ipvs.Filter
	direct     directState
	returns    returns
	cleaning   cleaning
	drains     drains
	// forwarding are the addresses that this node forwards, as last evaluated.
	forwarding map[netip.Addr]struct{}
	ports      map[pools.ServiceKey]forwarding.HealthPort
	// services are the Services of the virtual servers, for the log: the plan has none of a deleted one.
	services map[ipvs.Key]pools.ServiceKey
	// ipv6 is set if the plan has IPv6 virtual servers.
	ipv6 bool

	// failed is the work that failed with errs.
	failed *Work
	errs   []error
	// deferred is set if the last Program left an address because of adopted routes. programmed is when it had applied
	// everything but the conntrack cleanup, zero if something failed.
	deferred   bool
	programmed time.Time
}

// New returns a DataPlane that has not observed anything yet.
func New(cfg Config, drivers Drivers) *DataPlane {
	return &DataPlane{
		cfg:        cfg,
		drivers:    drivers,
		cleaning:   cleaning{waiting: map[ipvs.Key]struct{}{}},
		drains:     newDrains(),
		forwarding: map[netip.Addr]struct{}{},
		ports:      map[pools.ServiceKey]forwarding.HealthPort{},
		services:   map[ipvs.Key]pools.ServiceKey{},
		failed:     NewWork(),
	}
}

// Update takes the inputs of a reconcile, or those of a plan made within it.
func (d *DataPlane) Update(in Inputs) { d.in = in }

// AddPending adds pending work that is due: the deferred conntrack cleanup, and the real servers that EndDrains ended.
func (d *DataPlane) AddPending(todo *Work, now time.Time) {
	d.cleaning.take(todo, now)
	maps.Copy(todo.Keys, d.drains.pending)
	clear(d.drains.pending)
}

// UpdateFamilies records whether IPv6 addresses are served, and reports whether that changed: the sysctls of IPv6 are
// then to be set by Observe.
func (d *DataPlane) UpdateFamilies(todo *Work) bool {
	before, touched := d.ipv6, false
	for key := range todo.Keys {
		touched = touched || key.Addr.Is6()
	}
	if touched {
		d.ipv6 = false
		for addr := range d.in.Desired.Keys {
			if d.ipv6 = addr.Is6(); d.ipv6 {
				break
			}
		}
	}
	return d.ipv6 != before
}

// TakeFailed moves the failed operations into the work and clears their errors.
func (d *DataPlane) TakeFailed(todo *Work) {
	todo.Add(d.failed)
	d.failed, d.errs = NewWork(), nil
}

// Known reports whether the last observation succeeded.
func (d *DataPlane) Known() bool { return d.known != nil }

// Settled reports whether there is nothing to retry and no error to clear.
func (d *DataPlane) Settled() bool { return d.known != nil && d.failed.Empty() && len(d.errs) == 0 }

// Complete reports whether no change of the forwarding state is pending.
func (d *DataPlane) Complete() bool { return d.known != nil && !d.failed.forwarding() }

// Pending reports whether a change of this forwarding state is pending.
func (d *DataPlane) Pending(w *Work) bool { return d.known == nil || d.failed.overlaps(w) }

// Deferred reports whether the last Program left an address only because routes of an earlier process may attract
// packets to it.
func (d *DataPlane) Deferred() bool { return d.deferred }

// Programmed returns when the last Program had applied all changes but the conntrack cleanup. ok is false if one
// failed.
func (d *DataPlane) Programmed() (at time.Time, ok bool) { return d.programmed, !d.programmed.IsZero() }

// Wake returns when a deferred conntrack cleanup or a count of draining connections is due, false for none.
func (d *DataPlane) Wake() (time.Time, bool) {
	due, waits := d.cleaning.wake()
	if count := d.drains.due; d.known != nil && !count.IsZero() && (!waits || count.Before(due)) {
		return count, true
	}
	return due, waits
}

// Size returns the number of owned virtual servers and of their real servers.
func (d *DataPlane) Size() (virtual, real int) {
	if d.known == nil {
		return 0, 0
	}
	return len(d.known.table.have), d.known.table.reals
}

// IsLocal reports whether an address is an owned local address of the node.
func (d *DataPlane) IsLocal(addr netip.Addr) bool { return d.known != nil && has(d.known.addrs, addr) }

// Errors returns why the node does not match the plan: errors that only the operator can fix, and failures.
func (d *DataPlane) Errors() []error {
	var errs []error
	if d.known != nil {
		wrong := d.known.sysctls
		errs = append(d.foreignErrors(), wrong.All, wrong.ARP, wrong.IPv6, wrong.Limits)
	}
	return slices.DeleteFunc(append(errs, d.errs...), func(err error) bool { return err == nil })
}

func (d *DataPlane) fail(err error) {
	if err != nil {
		d.errs = append(d.errs, err)
	}
}

// recordProgrammed records the time at which everything is applied.
func (d *DataPlane) recordProgrammed() {
	if d.failed.Empty() {
		d.programmed = time.Now()
	}
}

// Evaluate records which of these addresses the node forwards. While the node cannot be observed, the last observation
// counts: it very likely still holds.
func (d *DataPlane) Evaluate(addrs map[netip.Addr]struct{}) {
	if d.known == nil {
		return
	}
	lacking := d.lacking()
	for addr := range addrs {
		if d.forwards(addr, lacking) {
			d.forwarding[addr] = struct{}{}
		} else {
			delete(d.forwarding, addr)
		}
	}
}

// Forwards reports whether the node forwards an address, as last evaluated.
func (d *DataPlane) Forwards(addr netip.Addr) bool { return has(d.forwarding, addr) }

// forwards reports whether packets to an address are forwarded: by IronLB or, if it does not serve the address, by
// another program.
func (d *DataPlane) forwards(addr netip.Addr, lacking map[ipvs.Key]bool) bool {
	if !has(d.in.Desired.Local, addr) {
		return d.known.sysctls.affecting(addr) == nil || d.in.Published(addr) || d.isRouted(addr)
	}
	return has(d.known.addrs, addr) && d.canForward(addr, lacking) && !d.isClosed(addr)
}

// KernelAnswers reports whether the kernel itself may answer ARP for an address, here and so perhaps on every node. An
// address that is already announced is kept: its withdrawal would cost more than it saves. ok is false while the node
// is not observed.
func (d *DataPlane) KernelAnswers(addr netip.Addr) (answers, ok bool) {
	if d.known == nil {
		return false, false
	}
	return d.known.sysctls.arp(addr) != nil && !d.in.Published(addr), true
}

// Ready returns a predicate for addresses that the node forwards already and that the work does not affect. So their
// announcement does not wait for unrelated work.
func (d *DataPlane) Ready(todo *Work) func(netip.Addr) bool {
	busy := map[netip.Addr]struct{}{}
	for key := range todo.Keys {
		busy[key.Addr] = struct{}{}
	}
	for e := range todo.Elements {
		if ofVirtual(e) {
			busy[e.Key.Addr] = struct{}{}
		}
	}
	return func(a netip.Addr) bool {
		return has(d.forwarding, a) && !has(busy, a) && (!has(d.in.Desired.Local, a) || d.IsLocal(a))
	}
}

// isRouted reports whether a forwarded address is announced by BGP.
func (d *DataPlane) isRouted(addr netip.Addr) bool {
	return has(d.forwarding, addr) && d.in.Routed(addr)
}

// addAll adds everything that is wanted or was observed on the node to the work.
func (d *DataPlane) addAll(todo *Work) { todo.addState(d.in.Desired, d.known) }

func has[K comparable, V any](m map[K]V, key K) bool { _, ok := m[key]; return ok }

func sorted(addrs map[netip.Addr]struct{}) []netip.Addr {
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
}

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
