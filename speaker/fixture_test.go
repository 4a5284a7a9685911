package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// fixture is an in-memory node and network. It checks the order of each change: nothing is reachable before it is
// programmed, and nothing is removed while it is reachable.
type fixture struct {
	t      *testing.T
	kernel *ipvstest.Kernel

	mu      sync.Mutex
	filter  ipvs.Filter // nil: no table
	applied ipvs.Filter // what this process last applied
	addrs   map[netip.Addr]struct{}
	foreign map[netip.Addr]struct{}
	// retained are the addresses for which the kernel answers, failRetain those for which it cannot.
	retained   map[netip.Addr]struct{}
	failRetain map[netip.Addr]bool
	blackholes map[netip.Prefix]struct{}
	announced  map[netip.Addr]ownership.Announcement
	ups        map[string]bool // interfaces
	statuses   map[string]report.VIPStatus
	changes    int
	calls      int      // that observe or change the node
	verified   int      // virtual servers that were compared
	lists      int      // of virtual servers
	counter    *counter // the kernel counts connections; nil if the driver has no such method
	complains  bool     // the next Apply returns an error although it completes
	// slowSame is the duration of the comparison of one virtual server, slowAddresses that of a list of addresses.
	slowSame, slowAddresses time.Duration
	noModule                bool
	// failAt makes the change with that number, counted from 1, and all later ones fail until it is reset.
	failAt int
	// failFilter is the error of each filter change.
	failFilter error
	// failSysctls are the errors of the sysctls.
	failSysctls dataplane.SysctlErrors
	// refuse are the elements that the kernel rejects.
	refuse map[ipvs.Element]bool
	// wanted reports whether a Service has the address, according to the speaker's plan.
	wanted func(netip.Addr) bool
	// element reports whether the filter should contain the element, according to the speaker's plan.
	element func(ipvs.Element) bool
	// endpoints returns the number of real servers of a virtual server, according to the speaker's plan.
	endpoints func(ipvs.Key) int
	// hardware returns the hardware addresses of the other nodes. macs are those that the announcer received.
	hardware func() map[[6]byte]string
	macs     map[[6]byte]string
	// nodeStatus is the last published status of the node.
	nodeStatus report.NodeStatus
	// harmed is set while another program may have destroyed state that the speaker has not observed since: the order
	// cannot be kept then.
	harmed bool
	// chance is the number of changes out of a thousand that fail.
	chance int
	dice   *rand.Rand

	internal      *ipvstest.Kernel
	pods          ipvs.PodSources
	cleaned       []ipvs.Key    // by conntrack
	tracked       ipvs.Table    // what conntrack last received of each virtual server
	cleanings     []time.Time   // when each ended
	slowClean     time.Duration // duration of each cleanup
	entries       int           // deleted by each cleanup
	ports         map[pools.ServiceKey]forwarding.HealthPort
	failPorts     map[pools.ServiceKey]error
	checks        map[view.Check]struct{}
	ipv6          bool // the IPv6 sysctls are set
	reports       int
	announcements int // calls of the announcer
	deadB         bool
	conflicts     map[netip.Addr]view.Conflict
	bgp           fixtureBGP
	tunnels       fixtureTunnels
	returns       fixtureReturnRoutes
	reach         *fixtureReach // nil for none
	probing       bool          // addresses to be probed are not announced yet
	level         slog.Level    // of the log
}

var errInjected = errors.New("injected")

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, kernel: ipvstest.NewKernel(), addrs: map[netip.Addr]struct{}{}, foreign: map[netip.Addr]struct{}{}, retained: map[netip.Addr]struct{}{},
		announced: map[netip.Addr]ownership.Announcement{}, ups: map[string]bool{"eth0": true}, internal: ipvstest.NewKernel(), tracked: ipvs.Table{}}
	f.internal.Fail = func(op ipvs.Op) error {
		if op.Action == ipvs.AddVirtual && !isServed(f.filter, op.Virtual) {
			f.wrong("internal: %v before the filter serves it", op)
		}
		f.checkTreated(op)
		return f.change("internal " + op.String())
	}
	f.kernel.Fail = func(op ipvs.Op) error {
		if err := f.change(op.String()); err != nil {
			return err
		}
		if _, local := f.addrs[op.Virtual.Addr]; local && op.Action == ipvs.DeleteVirtual && !f.wanted(op.Virtual.Addr) {
			f.wrong("%v while its address is still local", op)
		}
		if op.Action == ipvs.AddVirtual && !isServed(f.filter, op.Virtual) {
			f.wrong("%v before the filter serves it", op)
		}
		f.checkUndirected(op.String(), op.Virtual)
		f.checkTreated(op)
		return nil
	}
	return f
}

// checkTreated checks that a new real server receives no client in an outdated way: with another source address, or
// from a range that is no longer allowed.
func (f *fixture) checkTreated(op ipvs.Op) {
	if op.Action != ipvs.AddReal {
		return
	}
	for e := range f.filter {
		old := e.Key == op.Virtual && !f.element(e)
		switch e.Set {
		case ipvs.Masqueraded, ipvs.MasqueradedUnlessPod:
		case ipvs.Allowed:
			old = old && f.element(ipvs.Element{Set: ipvs.Restricted, Key: e.Key})
		default:
			old = false
		}
		if old {
			f.wrong("%v while the filter still holds %v", op, e)
		}
	}
}

// wrong reports a violation of the order.
func (f *fixture) wrong(format string, args ...any) {
	f.t.Helper()
	if !f.harmed {
		f.t.Errorf(format, args...)
	}
}

// change counts a change and fails if it should.
func (f *fixture) change(what string) error {
	f.changes++
	if f.failAt > 0 && f.changes >= f.failAt || f.chance > 0 && f.dice.IntN(1000) < f.chance {
		return fmt.Errorf("%s: %w", what, errInjected)
	}
	return nil
}

func (f *fixture) node() Node {
	var servers dataplane.VirtualServers = fixtureIPVS{f}
	if f.counter != nil {
		servers = fixtureDraining{fixtureIPVS{f}, f.counter}
	}
	return Node{
		Drivers: dataplane.Drivers{VirtualServers: servers, Filter: fixtureFilter{f}, Addresses: fixtureAddresses{f}, Sysctls: fixtureSysctls{f},
			ClusterInternal: fixtureInternal{f}, Direct: fixtureDirect{f}, ReturnRoutes: fixtureReturns{f}, Conntrack: fixtureConntrack{f}, HealthPorts: fixturePorts{f}, Checks: fixtureChecks{f}},
		Retainer: fixtureRetainer{f}, Blackholes: fixtureBlackholes{f},
	}
}

// loseFilter deletes the filter as another program might.
func (f *fixture) loseFilter() { f.mu.Lock(); f.filter = nil; f.mu.Unlock() }

// restart drops the state of the process.
func (f *fixture) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied, f.announced = nil, map[netip.Addr]ownership.Announcement{}
	f.ports, f.checks = nil, nil
	f.tunnels.applied, f.tunnels.begun = nil, false
	f.returns.harmed = true
}

type fixtureIPVS struct{ f *fixture }

func (i fixtureIPVS) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	i.f.calls++
	if i.f.noModule {
		return nil, fmt.Errorf("%w: module ip_vs missing: run \"modprobe ip_vs\"", ipvs.ErrNoModule)
	}
	return i.f.kernel.ListOf(addrs)
}

func (i fixtureIPVS) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	i.f.calls++
	if i.f.noModule {
		return nil, fmt.Errorf("%w: module ip_vs missing: run \"modprobe ip_vs\"", ipvs.ErrNoModule)
	}
	i.f.lists++
	return i.f.kernel.Virtuals()
}

func (i fixtureIPVS) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	done, err := i.f.kernel.Apply(ops)
	if i.f.complains {
		i.f.complains = false
		err = errors.Join(err, errInjected)
	}
	return done, err
}

func (i fixtureIPVS) Count() (int, error) {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	i.f.calls++
	return i.f.kernel.Count()
}

func (i fixtureIPVS) Same(key ipvs.Key, vs ipvs.VirtualServer) (bool, error) {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	i.f.verified++
	time.Sleep(i.f.slowSame)
	return i.f.kernel.Same(key, vs)
}

type fixtureFilter struct{ f *fixture }

func (f fixtureFilter) List(context.Context) (ipvs.Filter, error) {
	f.f.mu.Lock()
	defer f.f.mu.Unlock()
	f.f.calls++
	if f.f.filter == nil {
		return ipvs.Filter{}, nil
	}
	return maps.Clone(f.f.filter), nil
}

func (f fixtureFilter) Check(context.Context) (bool, error) {
	f.f.mu.Lock()
	defer f.f.mu.Unlock()
	f.f.calls++
	return f.f.applied != nil && f.f.filter != nil && maps.Equal(f.f.filter, f.f.applied), nil
}

func (f fixtureFilter) Build(_ context.Context, want ipvs.Filter) (int, error) {
	f.f.mu.Lock()
	defer f.f.mu.Unlock()
	if err := errors.Join(f.f.failFilter, f.f.change("filter")); err != nil {
		return 0, err
	}
	f.checkServed(want)
	f.f.filter, f.f.applied = maps.Clone(want), maps.Clone(want)
	return len(want), nil
}

func (f fixtureFilter) Update(_ context.Context, changes []ipvs.FilterChange) (int, error) {
	f.f.mu.Lock()
	defer f.f.mu.Unlock()
	if err := errors.Join(f.f.failFilter, f.f.change("filter")); err != nil {
		return 0, err
	}
	if f.f.applied == nil || f.f.filter == nil {
		return 0, errors.New("the tables are not built")
	}
	want := maps.Clone(f.f.filter)
	for _, c := range changes {
		if f.f.refuse[c.Element] {
			return 0, fmt.Errorf("element %v: %w", c.Element, errInjected)
		}
	}
	for _, c := range changes {
		for _, filter := range []ipvs.Filter{want, f.f.applied} {
			if c.Delete {
				delete(filter, c.Element)
			} else {
				filter[c.Element] = struct{}{}
			}
		}
	}
	f.checkServed(want)
	f.f.filter = want
	return len(changes), nil
}

// checkServed checks that no virtual server loses its filter element.
func (f fixtureFilter) checkServed(want ipvs.Filter) {
	table, _ := f.f.kernel.List()
	for key := range table {
		if isServed(f.f.filter, key) && !isServed(want, key) {
			f.f.wrong("the filter stops serving %v, which is still there", key)
		}
	}
	for key := range f.f.tunnels.have.Virtuals {
		if f.f.tunnels.begun && has(want, ipvs.Element{Set: ipvs.Masqueraded, Key: key}) {
			f.f.wrong("%v is masqueraded while it is still directed", key)
		}
	}
}

func (f fixtureFilter) Remove(context.Context) error {
	f.f.mu.Lock()
	defer f.f.mu.Unlock()
	f.f.filter, f.f.applied = nil, nil
	return f.f.change("filter")
}

type fixtureRetainer struct{ f *fixture }

func (r fixtureRetainer) Retain(addrs map[netip.Addr][]string, lifetime time.Duration) error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	for addr, interfaces := range addrs {
		if len(interfaces) == 0 || lifetime <= 0 || !has(r.f.addrs, addr) {
			r.f.wrong("address %v is retained on %v for %v", addr, interfaces, lifetime)
		}
		if r.f.failRetain[addr] {
			return errInjected
		}
	}
	for addr := range addrs {
		r.f.retained[addr] = struct{}{}
	}
	return nil
}

func (r fixtureRetainer) Retained() (map[netip.Addr]struct{}, error) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return maps.Clone(r.f.retained), nil
}

func (r fixtureRetainer) Release(addrs map[netip.Addr]struct{}) error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	for addr := range addrs {
		delete(r.f.retained, addr)
	}
	return nil
}

type fixtureAddresses struct{ f *fixture }

func (a fixtureAddresses) List() (ours, others map[netip.Addr]struct{}, err error) {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	time.Sleep(a.f.slowAddresses)
	return maps.Clone(a.f.addrs), maps.Clone(a.f.foreign), nil
}

func (a fixtureAddresses) Add(addr netip.Addr) (bool, error) {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	if err := a.f.change("add address"); err != nil {
		return false, err
	}
	table, _ := a.f.kernel.ListOf(map[netip.Addr]struct{}{addr: {}})
	if has(a.f.foreign, addr) {
		a.f.wrong("address %v of the node is taken from it", addr)
	}
	if len(table) == 0 {
		a.f.wrong("address %v is added before any virtual server", addr)
	}
	for key, vs := range table {
		if !isServed(a.f.filter, key) {
			a.f.wrong("address %v is added before the filter serves %v", addr, key)
		}
		if len(vs.RealServers) == 0 && a.f.endpoints(key) > 0 {
			a.f.wrong("address %v is added before any real server of %v", addr, key)
		}
		a.f.checkTier(key)
	}
	a.f.addrs[addr] = struct{}{}
	// Packets to the address went elsewhere so far, and conntrack has entries for that: an earlier cleanup was in vain.
	a.f.cleaned = slices.DeleteFunc(a.f.cleaned, func(k ipvs.Key) bool { return k.Addr == addr })
	return true, nil
}

func (a fixtureAddresses) Remove(addr netip.Addr) (bool, error) {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	if err := a.f.change("remove address"); err != nil {
		return false, err
	}
	if _, ok := a.f.announced[addr]; ok {
		a.f.wrong("address %v is removed while it is announced", addr)
	}
	a.f.checkWithdrawn(addr)
	delete(a.f.addrs, addr)
	return true, nil
}

type fixtureSysctls struct{ f *fixture }

func (s fixtureSysctls) Apply(ipv6 bool) ([]string, dataplane.SysctlErrors) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.ipv6 = ipv6
	return nil, s.f.failSysctls
}

// Announce and Report are the network and the API.
func (f *fixture) Announce(want map[netip.Addr]ownership.Announcement) (map[netip.Addr][]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	held := map[netip.Addr][]string{}
	for addr, ann := range want {
		if _, already := f.announced[addr]; !already {
			f.checkForwards(addr)
			f.checkOpen(addr)
			table, _ := f.kernel.ListOf(map[netip.Addr]struct{}{addr: {}})
			for key := range table {
				f.checkTier(key)
			}
			if ann.Probe && f.probing {
				continue
			}
		}
		for name, up := range f.ups {
			if up {
				held[addr] = append(held[addr], name)
			}
		}
	}
	f.announced = maps.Clone(want)
	f.announcements++
	return held, nil
}

func (f *fixture) Conflicts() map[netip.Addr]view.Conflict {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.conflicts)
}

func (f *fixture) ReportNode(s report.NodeStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodeStatus = s
}

func (f *fixture) SetPeers(macs map[[6]byte]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.macs = macs
}

func (f *fixture) checkForwards(addr netip.Addr) {
	table, _ := f.kernel.ListOf(map[netip.Addr]struct{}{addr: {}})
	if !has(f.addrs, addr) || len(table) == 0 || !has(addressesOf(f.filter), addr) {
		f.wrong("address %v is announced: local %v, %d virtual servers, filter %v", addr, has(f.addrs, addr), len(table), f.filter)
	}
}

func (f *fixture) Report(statuses map[string]report.VIPStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statuses = statuses
	f.reports++
}

// cluster is a Source that the test fills.
type cluster struct {
	mu      sync.Mutex
	view    *view.View
	touched view.Touched
	pending []func(*view.View) view.Touched
	synced  bool
	trigger *Trigger
}

func (c *cluster) Observe() (*view.View, view.Touched, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced {
		return nil, view.Touched{}, false
	}
	c.fold()
	touched := c.touched
	c.touched = view.Touched{}
	return c.view, touched, true
}

// touch changes the View at the next observation, because the View belongs to the speaker, and returns then what it
// touched.
func (c *cluster) touch(change func(*view.View) view.Touched) {
	c.mu.Lock()
	c.pending = append(c.pending, change)
	c.mu.Unlock()
	c.trigger.Now()
}

// fold makes the pending changes.
func (c *cluster) fold() {
	for _, change := range c.pending {
		touched := change(c.view)
		c.touched.Services = merge(c.touched.Services, touched.Services)
		c.touched.Nodes = merge(c.touched.Nodes, touched.Nodes)
		c.touched.VIPs = merge(c.touched.VIPs, touched.VIPs)
		c.touched.Links = merge(c.touched.Links, touched.Links)
		c.touched.Advertisements = c.touched.Advertisements || touched.Advertisements
		c.touched.BGPPeers = merge(c.touched.BGPPeers, touched.BGPPeers)
		c.touched.BGPAdvertisements = c.touched.BGPAdvertisements || touched.BGPAdvertisements
		c.touched.Since = append(c.touched.Since, touched.Since...)
		c.touched.All = c.touched.All || touched.All
	}
	c.pending = nil
}

func merge[K comparable](a, b map[K]struct{}) map[K]struct{} {
	if a == nil {
		a = map[K]struct{}{}
	}
	maps.Copy(a, b)
	return a
}

// set makes any change of the View.
func (c *cluster) set(change func(*view.View)) {
	c.touch(func(v *view.View) view.Touched {
		change(v)
		return view.Touched{All: true}
	})
}

// isServed reports whether a filter accepts packets to a virtual server.
func isServed(f ipvs.Filter, key ipvs.Key) bool {
	return has(f, ipvs.Element{Set: ipvs.Served, Key: key})
}

// serving returns the real servers that take packets.
func serving(vs ipvs.VirtualServer) []netip.AddrPort {
	var out []netip.AddrPort
	for addr, real := range vs.RealServers {
		if real.Weight > 0 {
			out = append(out, addr)
		}
	}
	return out
}

// addressesOf returns the virtual addresses in a filter.
func addressesOf(f ipvs.Filter) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	for e := range f {
		if e.Set == ipvs.Addresses {
			out[e.Key.Addr] = struct{}{}
		}
	}
	return out
}
