package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/traffic"
)

// virtualServers are the virtual servers, in the kernel's IPVS or in nftables as configured. They are opened and probed
// on first use, with retries until that succeeds.
type virtualServers struct {
	config config
	log    *slog.Logger
	// chosen is called with the data plane, once it is known.
	chosen func(dataplaneKind)
	// openIPVS opens the new data plane, loadedIPVS the residual one of an earlier process. ours identifies IronLB's
	// virtual servers in that.
	openIPVS   func(config) (driver, error)
	loadedIPVS func() (ipvsTable, error)
	ours       func() (func(ipvs.Key) bool, error)
	// calico reports whether Calico polices traffic forwarded to Pods, or did before the start.
	calico func() (bool, error)

	// opening serializes open, which may take as long as modprobe. selected is nil until the data plane is known.
	opening  sync.Mutex
	selected atomic.Pointer[selected]
	residual *residual // of the other kind, used only by the loop
	// failed is why the last open failed, if it did.
	failed atomic.Pointer[error]
	// lacking are the schedulers of virtual servers that nftables lacks, used only by the loop; unsupported are their
	// names, sorted.
	lacking     map[ipvs.Key]string
	unsupported atomic.Pointer[[]string]
}

// selected is the data plane in use.
type selected struct {
	driver driver
	kind   dataplaneKind
}

// driver is a data plane.
type driver interface {
	dataplane.VirtualServers
	VirtualStats() (map[ipvs.Key]ipvs.Stats, error)
	Close()
}

func newVirtualServers(c config, log *slog.Logger, chosen func(dataplaneKind), ours func() (func(ipvs.Key) bool, error)) *virtualServers {
	return &virtualServers{config: c, log: log, chosen: chosen, openIPVS: openKernel, loadedIPVS: loadedIPVS, ours: ours,
		calico: kubeproxy.CalicoPolices}
}

func (v *virtualServers) open() (d dataplane.VirtualServers, err error) {
	v.opening.Lock()
	defer v.opening.Unlock()
	if s := v.selected.Load(); s != nil {
		return s.driver, nil
	}
	defer func() { v.failed.Store(&err) }()
	var missing error
	bypassed, err := v.bypassesPolicies()
	if err != nil {
		return nil, err
	}
	if bypassed {
		v.log.Info("dataplane auto uses nftables",
			"reason", "Calico polices this node, or did, and ignores what IPVS sends to Pods (docs/reference/network-plugins.md)")
	}
	if v.config.Dataplane != dataplaneNFTables && !bypassed {
		k, err := v.openIPVS(v.config)
		if err == nil {
			v.residual = leftInNFTables(v.log)
			v.choose(dataplaneIPVS, k)
			return k, nil
		}
		// Any other obstacle, such as a scheduler without its module, can be fixed.
		if v.config.Dataplane == dataplaneIPVS || !errors.Is(err, ipvs.ErrNoModule) {
			return nil, err
		}
		missing = err
	}
	b, err := openBalancer(v.config)
	if err != nil {
		return nil, errors.Join(missing, err)
	}
	if v.residual, err = leftInIPVS(v.log, v.loadedIPVS, v.ours); err != nil {
		b.Close()
		return nil, fmt.Errorf("list the residual state of IPVS: %w", err)
	}
	v.choose(dataplaneNFTables, b)
	if missing != nil {
		v.log.Warn("the kernel has no IPVS: nftables forwards in its place until the speaker is restarted", "reason", missing)
	}
	return b, nil
}

// bypassesPolicies reports whether dataplane auto must not select IPVS, because NetworkPolicies would not apply.
func (v *virtualServers) bypassesPolicies() (bool, error) {
	if v.config.Dataplane != dataplaneAuto {
		return false, nil
	}
	polices, err := v.calico()
	if err != nil {
		return false, fmt.Errorf("choose the data plane: %w", err)
	}
	return polices, nil
}

func (v *virtualServers) choose(kind dataplaneKind, d driver) {
	v.selected.Store(&selected{driver: d, kind: kind})
	if v.chosen != nil {
		v.chosen(kind)
	}
}

// openKernel returns the kernel's IPVS with its time-outs set, if it works with the scheduler.
func openKernel(c config) (driver, error) {
	k, err := kernel.Open()
	if err != nil {
		return nil, err
	}
	_, err = k.SetTimeouts(kernel.Timeouts{TCP: c.Timeouts.TCP, TCPFin: c.Timeouts.TCPFin, UDP: c.Timeouts.UDP})
	if err := errors.Join(err, k.Probe(c.Scheduler)); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// openBalancer returns nftables as the complete data plane.
func openBalancer(c config) (*nftlb.Balancer, error) {
	b, err := nftlb.New(nftlb.AllTraffic)
	if err != nil {
		return nil, err
	}
	if c.countsInNFTables() {
		b.CountTraffic()
	}
	if err := b.Probe(c.Scheduler); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// inIPVS reports whether IPVS forwards: false until the data plane is selected.
func (v *virtualServers) inIPVS() bool {
	return v.proxyMode() == kubeproxy.IPVS
}

// mayBeIPVS reports whether IPVS forwards, or may be selected: its requirements on the node must be met before.
func (v *virtualServers) mayBeIPVS() bool {
	return cmp.Or(v.kind(), v.config.Dataplane) != dataplaneNFTables
}

// openError returns why the data plane could not be opened, nil for no reason or if that was not tried yet.
func (v *virtualServers) openError() error {
	if err := v.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// kind returns the data plane; empty until it is known.
func (v *virtualServers) kind() dataplaneKind {
	if s := v.selected.Load(); s != nil {
		return s.kind
	}
	return ""
}

// proxyMode returns the data plane as a kube-proxy mode; empty until it is known.
func (v *virtualServers) proxyMode() kubeproxy.Mode {
	return map[dataplaneKind]kubeproxy.Mode{dataplaneIPVS: kubeproxy.IPVS, dataplaneNFTables: kubeproxy.NFTables}[v.kind()]
}

func (v *virtualServers) close() {
	if s := v.selected.Load(); s != nil {
		s.driver.Close()
	}
}

func (v *virtualServers) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	d, err := v.open()
	if err != nil {
		return nil, err
	}
	return d.ListOf(addrs)
}

func (v *virtualServers) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	d, err := v.open()
	if err != nil {
		return nil, err
	}
	return d.Virtuals()
}

func (v *virtualServers) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	d, err := v.open()
	if err != nil {
		return nil, err
	}
	if v.kind() == dataplaneNFTables {
		v.reportSchedulers(ops)
	}
	done, err := d.Apply(ops)
	if err == nil || len(done) > 0 { // residual virtual servers must not stay: their endpoints are no longer updated
		v.programmed()
	}
	return done, err
}

// reportSchedulers records the schedulers that nftables lacks, while a virtual server has one, and logs each of them.
func (v *virtualServers) reportSchedulers(ops []ipvs.Op) {
	changed := false
	for _, op := range ops {
		name := op.Settings.Scheduler
		switch {
		case op.Action == ipvs.DeleteVirtual, name != "" && nftlb.HasScheduler(name):
			changed = changed || v.lacking[op.Virtual] != ""
			delete(v.lacking, op.Virtual)
		case name != "" && v.lacking[op.Virtual] != name:
			if !slices.Contains(slices.Collect(maps.Values(v.lacking)), name) {
				v.log.Warn("Scheduler is not available with nftables", "scheduler", name, "used", nftlb.Fallback, "virtualServer", op.Virtual)
			}
			if v.lacking == nil {
				v.lacking = map[ipvs.Key]string{}
			}
			v.lacking[op.Virtual], changed = name, true
		}
	}
	if changed {
		names := slices.Compact(slices.Sorted(maps.Values(v.lacking)))
		v.unsupported.Store(&names)
	}
}

// unsupportedSchedulers returns the requested schedulers that nftables lacks, sorted.
func (v *virtualServers) unsupportedSchedulers() []string {
	if known := v.unsupported.Load(); known != nil {
		return *known
	}
	return nil
}

// programmed is called by the loop when everything is programmed, also if that required no change.
func (v *virtualServers) programmed() {
	v.residual.programmed()
}

// Count implements dataplane.Verifier; only IPVS counts.
func (v *virtualServers) Count() (int, error) {
	d, err := v.open()
	if err != nil {
		return 0, err
	}
	if verifier, ok := d.(dataplane.Verifier); ok {
		return verifier.Count()
	}
	return 0, nil
}

// Same implements dataplane.Verifier. A data plane without it is listed instead.
func (v *virtualServers) Same(key ipvs.Key, vs ipvs.VirtualServer) (bool, error) {
	d, err := v.open()
	if err != nil {
		return false, err
	}
	if verifier, ok := d.(dataplane.Verifier); ok {
		return verifier.Same(key, vs)
	}
	return false, nil
}

// Generation implements dataplane.Watcher; only nftables notifies of changes.
func (v *virtualServers) Generation() (n uint64, watched bool, err error) {
	d, err := v.open()
	if err != nil {
		return 0, false, err
	}
	if w, ok := d.(dataplane.Watcher); ok {
		return w.Generation()
	}
	return 0, false, nil
}

// counting is a data plane that counts connections and real servers.
type counting interface {
	dataplane.ConnectionCounter
	traffic.Reader
}

// counting returns nil if the data plane is not known, or nftables. It opens none.
func (v *virtualServers) counting() counting {
	s := v.selected.Load()
	if s == nil {
		return nil
	}
	c, _ := s.driver.(counting)
	return c
}

// countsInNFTables reports whether nftables is to count traffic. That costs each packet a lookup.
func (c config) countsInNFTables() bool {
	return c.Traffic == traffic.VirtualServers || c.Traffic == traffic.Endpoints
}

// Counts reports whether the data plane is known, and counts the traffic of virtual servers.
func (v *virtualServers) Counts() bool {
	return v.inIPVS() || v.kind() == dataplaneNFTables && v.config.countsInNFTables()
}

// VirtualStats returns the counters of all virtual servers.
func (v *virtualServers) VirtualStats() (map[ipvs.Key]ipvs.Stats, error) {
	if s := v.selected.Load(); s != nil {
		return s.driver.VirtualStats()
	}
	return nil, nil
}

// Connections returns the connections of the real servers of these virtual servers; only IPVS counts.
func (v *virtualServers) Connections(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	if c := v.counting(); c != nil {
		return c.Connections(keys)
	}
	return nil, nil
}

// RealStats returns the counters of the real servers of these virtual servers; only IPVS counts.
func (v *virtualServers) RealStats(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	if c := v.counting(); c != nil {
		return c.RealStats(keys)
	}
	return nil, nil
}

// clusterInternal are the virtual servers for Pods and the node itself, opened on first use.
type clusterInternal struct {
	mu       sync.Mutex
	balancer *nftlb.Balancer
}

func (i *clusterInternal) open() (*nftlb.Balancer, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.balancer == nil {
		b, err := nftlb.New(nftlb.ClusterInternal)
		if err != nil {
			return nil, err
		}
		i.balancer = b
	}
	return i.balancer, nil
}

func (i *clusterInternal) close() {
	if i.balancer != nil {
		i.balancer.Close()
	}
}

func (i *clusterInternal) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	b, err := i.open()
	if err != nil {
		return nil, err
	}
	return b.ListOf(addrs)
}

func (i *clusterInternal) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	b, err := i.open()
	if err != nil {
		return nil, err
	}
	return b.Virtuals()
}

func (i *clusterInternal) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	b, err := i.open()
	if err != nil {
		return nil, err
	}
	return b.Apply(ops)
}

// Generation implements dataplane.Watcher.
func (i *clusterInternal) Generation() (n uint64, watched bool, err error) {
	b, err := i.open()
	if err != nil {
		return 0, false, err
	}
	return b.Generation()
}

func (i *clusterInternal) SetPods(pods ipvs.PodSources) error {
	b, err := i.open()
	if err != nil {
		return err
	}
	return b.SetPods(pods)
}
