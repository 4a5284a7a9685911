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

// Source is what is known of the cluster.
type Source interface {
	// Observe returns the View and what changed in it since the last call; ok is false until everything was listed once.
	// The View is the caller's until it calls Observe again.
	Observe() (view *plan.View, touched plan.Touched, ok bool)
}

// Node are the drivers of what lives on the node.
type Node struct {
	VirtualServers VirtualServers
	Filter         Filter
	Addresses      Addresses
	Sysctls        Sysctls
	// Those that follow may be nil: what is planned for them is left undone.
	Inside      Inside
	Conntrack   Conntrack
	HealthPorts HealthPorts
	Checks      Checks
	Retainer    Retainer
	Blackholes  Blackholes
}

// VirtualServers is the kernel's IPVS, or what forwards in its place.
type VirtualServers interface {
	// ListOf returns the virtual servers of these addresses.
	ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error)
	// Virtuals returns all virtual servers without their real servers, which costs far less.
	Virtuals() (map[ipvs.Key]ipvs.Settings, error)
	// Apply carries out the ops in order, goes on after an error and returns those done.
	Apply(ops []ipvs.Op) (done []ipvs.Op, err error)
}

// Counter is a VirtualServers that tells at no cost how many it holds. That finds a flush; it need not count all, only
// the same ones each time.
type Counter interface {
	Count() (int, error)
}

// Inside are the virtual servers that Pods of and processes on this node get in place of those of VirtualServers. All
// that it holds is ours.
type Inside interface {
	VirtualServers
	// SetPods says what counts as a Pod.
	SetPods(ipvs.PodSources) error
}

// Filter is the packet filter's tables of ours.
type Filter interface {
	// List returns what the tables hold, also those of an earlier process.
	List(ctx context.Context) (ipvs.Filter, error)
	// Check tells whether the tables still are as this process made them.
	Check(ctx context.Context) (intact bool, err error)
	// Build makes the tables anew and returns how many elements it wrote.
	Build(ctx context.Context, want ipvs.Filter) (elements int, err error)
	// Update changes elements of tables that were built, all or none; its cost follows their number.
	Update(ctx context.Context, changes []ipvs.FilterChange) (elements int, err error)
	// Remove deletes the tables.
	Remove(ctx context.Context) error
}

// Addresses are the virtual addresses that the node takes in as its own.
type Addresses interface {
	// List returns those that are ours, also those of an earlier process, and the node's others. What is among the others
	// must not become ours as well: the node itself would be cut off.
	List() (ours, others map[netip.Addr]struct{}, err error)
	// Add tells whether the address was not there before.
	Add(netip.Addr) (bool, error)
	// Remove removes an address if it is ours, and tells whether it was.
	Remove(netip.Addr) (bool, error)
}

// Retainer has the kernel answer ARP and neighbour discovery while no speaker runs.
type Retainer interface {
	// Retain begins that for addresses of ours on their interfaces, until Release or for the lifetime, whatever becomes of the process. It
	// is all or nothing.
	Retain(addrs map[netip.Addr][]string, lifetime time.Duration) error
	// Retained returns the addresses for which it is so, also by an earlier process.
	Retained() (map[netip.Addr]struct{}, error)
	// Release ends it. Where there is nothing to end it succeeds.
	Release(addrs map[netip.Addr]struct{}) error
}

// Blackholes are routes that drop what is for a prefix and for none of the node's addresses.
type Blackholes interface {
	// Blackholes returns those that are ours, also those of an earlier process.
	Blackholes() (map[netip.Prefix]struct{}, error)
	// AddBlackhole tells whether there was none before.
	AddBlackhole(netip.Prefix) (bool, error)
	// RemoveBlackhole tells whether there was one.
	RemoveBlackhole(netip.Prefix) (bool, error)
}

// Sysctls are the kernel's settings that forwarding and answering rely on.
type Sysctls interface {
	// Apply sets those that differ and returns them as "key=value". ipv6 tells whether addresses of it are served.
	Apply(ipv6 bool) (changed []string, wrong SysctlErrors)
}

// SysctlErrors say why the kernel's settings are not as they must be, by what suffers. New addresses wait until those that they
// rely on are right.
type SysctlErrors struct {
	// All concerns every address, IPv6 only those of IPv6, Limits none: the sizes and time-outs of conntrack.
	All, IPv6, Limits error
	// ARP concerns who answers for an address of IPv4: the kernel may do so by itself for what is local. It concerns no route.
	ARP error
}

// of returns what an address cannot rely on.
func (e SysctlErrors) of(addr netip.Addr) error {
	if addr.Is4() {
		return e.All
	}
	return errors.Join(e.All, e.IPv6)
}

// answers returns why the kernel may answer for an address by itself.
func (e SysctlErrors) answers(addr netip.Addr) error {
	if addr.Is4() {
		return e.ARP
	}
	return nil
}

// sameFor tells whether the same addresses may come, and be answered for, as with other errors.
func (e SysctlErrors) sameFor(f SysctlErrors) bool {
	return (e.All == nil) == (f.All == nil) && (e.IPv6 == nil) == (f.IPv6 == nil) && (e.ARP == nil) == (f.ARP == nil)
}

// Conntrack is what the kernel remembers of connections.
type Conntrack interface {
	// Clean deletes those to these virtual servers that lead clients astray, and returns how many. Of UDP that is what
	// goes to none of its real servers with a weight; of TCP what goes to none of its real servers at all, or waits for
	// the first answer of one without a weight.
	Clean(ctx context.Context, table ipvs.Table) (deleted int, err error)
}

// HealthPorts answer for the Services that have a healthCheckNodePort.
type HealthPorts interface {
	// Set serves exactly these and returns an error for each that it cannot. Calling it again tries again.
	Set(map[pools.ServiceKey]plan.HealthPort) map[pools.ServiceKey]error
}

// Checks are the probes of other nodes and of new endpoints. Their results come back in the View.
type Checks interface {
	// Set replaces the whole set, which it keeps.
	Set(map[plan.Check]struct{})
}

// Announcer answers for addresses on the network.
type Announcer interface {
	// Announce replaces the whole set and returns the interfaces on which each address is answered for. One that is still
	// probed is absent; when that is done the loop is kicked.
	Announce(map[netip.Addr]plan.Announcement) (map[netip.Addr][]string, error)
	// Conflicts are the addresses of the set for which another host answers. When they change the loop is kicked.
	Conflicts() map[netip.Addr]plan.Conflict
	// SetPeers says which hardware addresses belong to speakers, by node.
	SetPeers(macs map[[6]byte]string)
}

// BGP announces addresses to routers.
type BGP interface {
	// Set says what is new. The first change is whole. It does not block, and what was said last stays if this process ends.
	Set(plan.BGPChange)
	// Sessions returns how the sessions are, by the name of the peer; one may be missing until it begins. When they change the loop is
	// kicked.
	Sessions() map[string]plan.Session
	// Blank tells whether who speaks is there and nobody has told it of a peer, this process or an earlier one. When that changes the loop
	// is kicked.
	Blank() bool
}

// Detector tells which other nodes are alive and what they say of VirtualIPs, without the API server. It kicks the loop
// when something of that changes.
type Detector interface {
	// Observe returns what is known, which nodes are heard otherwise than at the last call, and of which VirtualIPs one says
	// something else. The Members are never changed afterwards.
	Observe() (members plan.Members, nodes map[string]struct{}, claims map[plan.VIPID]struct{})
	// Say tells the others what this node does. It is whole each time and does not block.
	Say(plan.Word)
	// SetSegments says on which interfaces others are to be heard.
	SetSegments(interfaces []string)
	// SetPeers says which nodes there are, with their addresses on the node network.
	SetPeers(map[string][]netip.Addr)
	// Retain says that this process is about to end, and for how long the node goes on answering for what was said last.
	Retain(time.Duration)
	// Settled says that everything is decided that an earlier process left to the kernel.
	Settled()
}

// Reach finds the nodes that this one cannot reach. It triggers the loop when State returns something new.
type Reach interface {
	// SetNodes sets the other nodes, with their addresses on the node network.
	SetNodes(map[string][]netip.Addr)
	// SetGateways sets the addresses by way of which this node sends packets.
	SetGateways([]netip.Addr)
	// State returns what was found. It is not changed afterwards.
	State() plan.Reachability
}

// Reporter publishes the status of VirtualIPs. Report takes the whole set each time, keeps it, and does not block.
type Reporter interface {
	Report(map[string]plan.Status)
}

// NodeReporter publishes the status of this node. ReportNode keeps what it is told and does not block.
type NodeReporter interface {
	ReportNode(plan.NodeStatus)
}

// Progress is told how the node follows the cluster, for those who ask whether the service proxy is healthy.
type Progress interface {
	// Applied says that every change that came before is applied.
	Applied(before time.Time)
	// SetNode says whether the Node may get traffic.
	SetNode(eligible bool)
}
