package speaker

import (
	"context"
	"errors"
	"fmt"
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

// world is an in-memory node and network. It checks the order of each change: nothing is reachable before it is
// programmed, and nothing is removed while it is reachable.
type world struct {
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
	bgp           worldBGP
	tunnels       worldTunnels
	returns       worldReturnRoutes
	reach         *worldReach // nil for none
	probing       bool        // addresses to be probed are not announced yet
}

var errInjected = errors.New("injected")

func newWorld(t *testing.T) *world {
	w := &world{t: t, kernel: ipvstest.NewKernel(), addrs: map[netip.Addr]struct{}{}, foreign: map[netip.Addr]struct{}{}, retained: map[netip.Addr]struct{}{},
		announced: map[netip.Addr]ownership.Announcement{}, ups: map[string]bool{"eth0": true}, internal: ipvstest.NewKernel(), tracked: ipvs.Table{}}
	w.internal.Fail = func(op ipvs.Op) error {
		if op.Action == ipvs.AddVirtual && !isServed(w.filter, op.Virtual) {
			w.wrong("internal: %v before the filter serves it", op)
		}
		w.checkTreated(op)
		return w.change("internal " + op.String())
	}
	w.kernel.Fail = func(op ipvs.Op) error {
		if err := w.change(op.String()); err != nil {
			return err
		}
		if _, local := w.addrs[op.Virtual.Addr]; local && op.Action == ipvs.DeleteVirtual && !w.wanted(op.Virtual.Addr) {
			w.wrong("%v while its address is still local", op)
		}
		if op.Action == ipvs.AddVirtual && !isServed(w.filter, op.Virtual) {
			w.wrong("%v before the filter serves it", op)
		}
		w.checkUndirected(op.String(), op.Virtual)
		w.checkTreated(op)
		return nil
	}
	return w
}

// checkTreated checks that a new real server receives no client in an outdated way: with another source address, or
// from a range that is no longer allowed.
func (w *world) checkTreated(op ipvs.Op) {
	if op.Action != ipvs.AddReal {
		return
	}
	for e := range w.filter {
		old := e.Key == op.Virtual && !w.element(e)
		switch e.Set {
		case ipvs.Masqueraded, ipvs.MasqueradedUnlessPod:
		case ipvs.Allowed:
			old = old && w.element(ipvs.Element{Set: ipvs.Restricted, Key: e.Key})
		default:
			old = false
		}
		if old {
			w.wrong("%v while the filter still holds %v", op, e)
		}
	}
}

// wrong reports a violation of the order.
func (w *world) wrong(format string, args ...any) {
	w.t.Helper()
	if !w.harmed {
		w.t.Errorf(format, args...)
	}
}

// change counts a change and fails if it should.
func (w *world) change(what string) error {
	w.changes++
	if w.failAt > 0 && w.changes >= w.failAt || w.chance > 0 && w.dice.IntN(1000) < w.chance {
		return fmt.Errorf("%s: %w", what, errInjected)
	}
	return nil
}

func (w *world) node() Node {
	var servers dataplane.VirtualServers = worldIPVS{w}
	if w.counter != nil {
		servers = worldDraining{worldIPVS{w}, w.counter}
	}
	return Node{
		Drivers: dataplane.Drivers{VirtualServers: servers, Filter: worldFilter{w}, Addresses: worldAddresses{w}, Sysctls: worldSysctls{w},
			ClusterInternal: worldInternal{w}, Direct: worldDirect{w}, ReturnRoutes: worldReturns{w}, Conntrack: worldConntrack{w}, HealthPorts: worldPorts{w}, Checks: worldChecks{w}},
		Retainer: worldRetainer{w}, Blackholes: worldBlackholes{w},
	}
}

// loseFilter deletes the filter as another program might.
func (w *world) loseFilter() { w.mu.Lock(); w.filter = nil; w.mu.Unlock() }

// restart drops the state of the process.
func (w *world) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applied, w.announced = nil, map[netip.Addr]ownership.Announcement{}
	w.ports, w.checks = nil, nil
	w.tunnels.applied, w.tunnels.begun = nil, false
	w.returns.harmed = true
}

type worldIPVS struct{ w *world }

func (i worldIPVS) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.w.calls++
	if i.w.noModule {
		return nil, fmt.Errorf("%w: module ip_vs missing: run \"modprobe ip_vs\"", ipvs.ErrNoModule)
	}
	return i.w.kernel.ListOf(addrs)
}

func (i worldIPVS) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.w.calls++
	if i.w.noModule {
		return nil, fmt.Errorf("%w: module ip_vs missing: run \"modprobe ip_vs\"", ipvs.ErrNoModule)
	}
	i.w.lists++
	return i.w.kernel.Virtuals()
}

func (i worldIPVS) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	done, err := i.w.kernel.Apply(ops)
	if i.w.complains {
		i.w.complains = false
		err = errors.Join(err, errInjected)
	}
	return done, err
}

func (i worldIPVS) Count() (int, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.w.calls++
	return i.w.kernel.Count()
}

func (i worldIPVS) Same(key ipvs.Key, vs ipvs.VirtualServer) (bool, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.w.verified++
	time.Sleep(i.w.slowSame)
	return i.w.kernel.Same(key, vs)
}

type worldFilter struct{ w *world }

func (f worldFilter) List(context.Context) (ipvs.Filter, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.calls++
	if f.w.filter == nil {
		return ipvs.Filter{}, nil
	}
	return maps.Clone(f.w.filter), nil
}

func (f worldFilter) Check(context.Context) (bool, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.calls++
	return f.w.applied != nil && f.w.filter != nil && maps.Equal(f.w.filter, f.w.applied), nil
}

func (f worldFilter) Build(_ context.Context, want ipvs.Filter) (int, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if err := errors.Join(f.w.failFilter, f.w.change("filter")); err != nil {
		return 0, err
	}
	f.checkServed(want)
	f.w.filter, f.w.applied = maps.Clone(want), maps.Clone(want)
	return len(want), nil
}

func (f worldFilter) Update(_ context.Context, changes []ipvs.FilterChange) (int, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if err := errors.Join(f.w.failFilter, f.w.change("filter")); err != nil {
		return 0, err
	}
	if f.w.applied == nil || f.w.filter == nil {
		return 0, errors.New("the tables are not built")
	}
	want := maps.Clone(f.w.filter)
	for _, c := range changes {
		if f.w.refuse[c.Element] {
			return 0, fmt.Errorf("element %v: %w", c.Element, errInjected)
		}
	}
	for _, c := range changes {
		for _, filter := range []ipvs.Filter{want, f.w.applied} {
			if c.Delete {
				delete(filter, c.Element)
			} else {
				filter[c.Element] = struct{}{}
			}
		}
	}
	f.checkServed(want)
	f.w.filter = want
	return len(changes), nil
}

// checkServed checks that no virtual server loses its filter element.
func (f worldFilter) checkServed(want ipvs.Filter) {
	table, _ := f.w.kernel.List()
	for key := range table {
		if isServed(f.w.filter, key) && !isServed(want, key) {
			f.w.wrong("the filter stops serving %v, which is still there", key)
		}
	}
	for key := range f.w.tunnels.have.Virtuals {
		if f.w.tunnels.begun && has(want, ipvs.Element{Set: ipvs.Masqueraded, Key: key}) {
			f.w.wrong("%v is masqueraded while it is still directed", key)
		}
	}
}

func (f worldFilter) Remove(context.Context) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.filter, f.w.applied = nil, nil
	return f.w.change("filter")
}

type worldRetainer struct{ w *world }

func (r worldRetainer) Retain(addrs map[netip.Addr][]string, lifetime time.Duration) error {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for addr, interfaces := range addrs {
		if len(interfaces) == 0 || lifetime <= 0 || !has(r.w.addrs, addr) {
			r.w.wrong("address %v is retained on %v for %v", addr, interfaces, lifetime)
		}
		if r.w.failRetain[addr] {
			return errInjected
		}
	}
	for addr := range addrs {
		r.w.retained[addr] = struct{}{}
	}
	return nil
}

func (r worldRetainer) Retained() (map[netip.Addr]struct{}, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return maps.Clone(r.w.retained), nil
}

func (r worldRetainer) Release(addrs map[netip.Addr]struct{}) error {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for addr := range addrs {
		delete(r.w.retained, addr)
	}
	return nil
}

type worldAddresses struct{ w *world }

func (a worldAddresses) List() (ours, others map[netip.Addr]struct{}, err error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	time.Sleep(a.w.slowAddresses)
	return maps.Clone(a.w.addrs), maps.Clone(a.w.foreign), nil
}

func (a worldAddresses) Add(addr netip.Addr) (bool, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if err := a.w.change("add address"); err != nil {
		return false, err
	}
	table, _ := a.w.kernel.ListOf(map[netip.Addr]struct{}{addr: {}})
	if has(a.w.foreign, addr) {
		a.w.wrong("address %v of the node is taken from it", addr)
	}
	if len(table) == 0 {
		a.w.wrong("address %v is added before any virtual server", addr)
	}
	for key, vs := range table {
		if !isServed(a.w.filter, key) {
			a.w.wrong("address %v is added before the filter serves %v", addr, key)
		}
		if len(vs.RealServers) == 0 && a.w.endpoints(key) > 0 {
			a.w.wrong("address %v is added before any real server of %v", addr, key)
		}
		a.w.checkTier(key)
	}
	a.w.addrs[addr] = struct{}{}
	// Packets to the address went elsewhere so far, and conntrack has entries for that: an earlier cleanup was in vain.
	a.w.cleaned = slices.DeleteFunc(a.w.cleaned, func(k ipvs.Key) bool { return k.Addr == addr })
	return true, nil
}

func (a worldAddresses) Remove(addr netip.Addr) (bool, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if err := a.w.change("remove address"); err != nil {
		return false, err
	}
	if _, ok := a.w.announced[addr]; ok {
		a.w.wrong("address %v is removed while it is announced", addr)
	}
	a.w.checkWithdrawn(addr)
	delete(a.w.addrs, addr)
	return true, nil
}

type worldSysctls struct{ w *world }

func (s worldSysctls) Apply(ipv6 bool) ([]string, dataplane.SysctlErrors) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.ipv6 = ipv6
	return nil, s.w.failSysctls
}

// Announce and Report are the network and the API.
func (w *world) Announce(want map[netip.Addr]ownership.Announcement) (map[netip.Addr][]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := map[netip.Addr][]string{}
	for addr, ann := range want {
		if _, already := w.announced[addr]; !already {
			w.checkForwards(addr)
			w.checkOpen(addr)
			table, _ := w.kernel.ListOf(map[netip.Addr]struct{}{addr: {}})
			for key := range table {
				w.checkTier(key)
			}
			if ann.Probe && w.probing {
				continue
			}
		}
		for name, up := range w.ups {
			if up {
				held[addr] = append(held[addr], name)
			}
		}
	}
	w.announced = maps.Clone(want)
	w.announcements++
	return held, nil
}

func (w *world) Conflicts() map[netip.Addr]view.Conflict {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.conflicts)
}

func (w *world) ReportNode(s report.NodeStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodeStatus = s
}

func (w *world) SetPeers(macs map[[6]byte]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.macs = macs
}

func (w *world) checkForwards(addr netip.Addr) {
	table, _ := w.kernel.ListOf(map[netip.Addr]struct{}{addr: {}})
	if !has(w.addrs, addr) || len(table) == 0 || !has(addressesOf(w.filter), addr) {
		w.wrong("address %v is announced: local %v, %d virtual servers, filter %v", addr, has(w.addrs, addr), len(table), w.filter)
	}
}

func (w *world) Report(statuses map[string]report.VIPStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statuses = statuses
	w.reports++
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
