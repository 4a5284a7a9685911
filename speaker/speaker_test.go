package speaker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

var options = plan.Options{Node: "a", Options: forwarding.Options{DetectLocal: forwarding.DetectLocal{
	Mode: forwarding.ClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25")},
}}}

var (
	vip1 = netip.MustParseAddr("203.0.113.4")
	vip2 = netip.MustParseAddr("203.0.113.5")
)

// service adds a Service with its endpoints and its VirtualIP. The first node owns it.
func service(v *view.View, name string, addr netip.Addr, ports []uint16, endpoints int, nodes ...string) {
	key := pools.ServiceKey{Namespace: "default", Name: name}
	svc := view.Service{Addresses: []view.Address{{IP: addr, Pool: "main"}}}
	slice := view.Slice{}
	for _, p := range ports {
		svc.Ports = append(svc.Ports, view.Port{Name: fmt.Sprint(p), Protocol: ipvs.TCP, Port: p})
		slice.Ports = append(slice.Ports, view.Port{Name: fmt.Sprint(p), Protocol: ipvs.TCP, Port: p + 8000})
	}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, view.Endpoint{
			Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), Node: "a", Ready: true, Serving: true})
	}
	v.Services[key] = svc
	v.Slices[key] = map[string]view.Slice{"s": slice}
	v.VIPs[addr.String()] = view.VIP{Addresses: []netip.Addr{addr}, Services: []pools.ServiceKey{key}, Nodes: nodes}
}

func baseView() *view.View {
	v := view.New()
	v.Nodes["a"], v.Nodes["b"] = view.Node{}, view.Node{}
	v.Links["eth0"] = view.Link{Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/64")}}
	v.Advertisements["all"] = view.Advertisement{}
	withBGP(v)
	return v
}

// logBuffer is a log that can be read during writes.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// run is a running speaker with its fixture.
type run struct {
	*fixture
	*cluster
	speaker  *Speaker
	detector *fixtureDetector
	registry *prometheus.Registry
	log      *logBuffer
	logged   int // octets of it that since returned
	done     chan error
	stop     func()
}

// start starts a speaker for node a. It must be called within a synctest bubble.
func start(t *testing.T, f *fixture, c *cluster) *run { return startWith(t, f, c, options) }

func startWith(t *testing.T, f *fixture, c *cluster, o plan.Options) *run {
	t.Helper()
	c.trigger = NewTrigger()
	r := &run{fixture: f, cluster: c, registry: prometheus.NewRegistry(), log: &logBuffer{}}
	f.bgp.f, f.bgp.begun = f, false
	r.detector = &fixtureDetector{f: f, view: func() *view.View { return c.view }, trigger: c.trigger, dead: f.deadB}
	config := Config{
		Detector: r.detector, Retained: maps.Clone(f.retained),
		NodeName: "a", Plan: o, Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: f.level})), Trigger: c.trigger, Source: c, Node: f.node(),
		BGP: &f.bgp, Announcer: f, MACs: f.hardware, Reporter: f, Nodes: f, Metrics: NewMetrics(r.registry),
	}
	if f.reach != nil {
		f.reach.trigger, config.Reach = c.trigger, f.reach
	}
	r.speaker = New(config)
	f.wanted = func(addr netip.Addr) bool { return has(r.speaker.desired.Local, addr) }
	f.element = func(e ipvs.Element) bool { return has(r.speaker.desired.Filter, e) }
	f.tunnels.directs = func(key ipvs.Key) bool { return has(r.speaker.desired.Direct.Virtuals, key) }
	f.endpoints = func(key ipvs.Key) int { return len(r.speaker.desired.Table[key].RealServers) }
	ctx, cancel := context.WithCancel(t.Context())
	r.done = make(chan error, 1)
	go func() { r.done <- r.speaker.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-r.done; err != nil {
			t.Error(err)
		}
	}
	return r
}

// killB stops node b, or starts it.
func (r *run) killB(dead bool) {
	r.fixture.mu.Lock()
	r.deadB = dead
	r.fixture.mu.Unlock()
	r.detector.set(func(d *fixtureDetector) { d.dead = dead })
}

func (r *run) table(t *testing.T) ipvs.Table {
	t.Helper()
	table, err := r.kernel.List()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// wantPlanned checks the node against a plan made from the same View, and that the speaker is ready.
func (r *run) wantPlanned(t *testing.T) {
	t.Helper()
	synctest.Wait()
	r.cluster.mu.Lock() // the loop locks in this order
	defer r.cluster.mu.Unlock()
	r.fixture.mu.Lock()
	defer r.fixture.mu.Unlock()
	want := plan.Make(r.view, bgpOptions(), time.Now())
	r.wantRoutes(t, want)
	if got := r.table(t); !got.Equal(want.Table) {
		t.Errorf("virtual servers:\n%vwant:\n%v", got, want.Table)
	}
	r.wantDirected(t, want)
	if !maps.Equal(r.addrs, want.Local) {
		t.Errorf("local addresses %v, want %v", r.addrs, want.Local)
	}
	if !maps.Equal(r.filter, want.Filter) {
		t.Errorf("filter %v, want %v", r.filter, want.Filter)
	}
	if got, err := r.internal.List(); err != nil || !got.Equal(want.ClusterInternal) {
		t.Errorf("internal:\n%v%v, want:\n%v", got, err, want.ClusterInternal)
	}
	if !maps.Equal(r.ports, want.HealthPorts) || !maps.Equal(r.checks, want.Checks) {
		t.Errorf("health ports %v, checks %v; want %v, %v", r.ports, r.checks, want.HealthPorts, want.Checks)
	}
	if want := r.speaker.desired.Announce; !maps.EqualFunc(r.announced, want, ownership.Announcement.Equal) {
		t.Errorf("announced %v, want %v", r.announced, want)
	}
	for name, vip := range r.view.VIPs { // one of the two nodes owns each VirtualIP that can be forwarded
		if first := vip.Nodes[0]; len(r.speaker.desired.VIPs[name].Addresses) > 0 && (first == "a" || first == "b" && r.deadB) {
			if dec := r.speaker.desired.VIPs[name]; dec.Owner != "a" && dec.Reason != view.NoLocalEndpoint {
				t.Errorf("VirtualIP %s: %+v", name, dec)
			}
		}
	}
	if h := r.speaker.Health(); !h.Ready {
		t.Errorf("not ready: %s", h.Reason)
	}
}

func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func TestNothingBeforeEverythingIsListed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.addrs[vip1] = struct{}{} // of an earlier process
		r := start(t, f, &cluster{view: baseView()})
		defer r.stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.changes > 0 || f.calls > 0 {
			t.Errorf("%d changes and %d observations before the first list", f.changes, f.calls)
		}
		rec := httptest.NewRecorder()
		r.speaker.Readyz(rec, nil)
		if rec.Code != http.StatusServiceUnavailable || !strings.Contains(rec.Body.String(), "waiting for the first list") {
			t.Errorf("/readyz: %d %s", rec.Code, rec.Body)
		}
		rec = httptest.NewRecorder()
		r.speaker.Healthz(rec, nil)
		if rec.Code != http.StatusOK {
			t.Errorf("/healthz: %d %s", rec.Code, rec.Body)
		}
	})
}

func TestProgramsFollowsAndDeletes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80, 443}, 2, "a", "b")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		want := report.VIPStatus{Node: "a", Interfaces: []string{"eth0"}, Announced: true, Reason: view.Owner, Message: "announced by node a"}
		if got := r.statuses[vip1.String()]; got.Node != "a" || !slices.Equal(got.Interfaces, want.Interfaces) || got.Reason != want.Reason || !got.Announced {
			t.Errorf("status %+v, want %+v", got, want)
		}
		r.set(func(v *view.View) { service(v, "api", vip2, []uint16{443}, 3, "b", "a") })
		r.wantPlanned(t)
		r.set(func(v *view.View) { service(v, "web", vip1, []uint16{80}, 1, "b", "a") }) // a port, an endpoint and the ownership are removed
		r.wantPlanned(t)
		r.killB(true)
		r.wantPlanned(t)
		if d := r.speaker.desired; len(d.Announce) != 2 {
			t.Errorf("announces %v after b died", d.Announce)
		}
		r.set(func(v *view.View) {
			delete(v.Services, pools.ServiceKey{Namespace: "default", Name: "web"})
			delete(v.VIPs, vip1.String())
		})
		r.wantPlanned(t)
		before, changes := r.log.String(), r.changes
		time.Sleep(time.Hour)
		synctest.Wait()
		if r.log.String() != before || r.changes != changes {
			t.Errorf("an hour without a change: %d changes, log %s", r.changes-changes, r.log.String()[len(before):])
		}
	})
}

func TestRestoresWithinTwoSeconds(t *testing.T) {
	losses := map[string]func(f *fixture){
		"flush of IPVS":      func(f *fixture) { f.kernel.Flush() },
		"loss of the filter": func(f *fixture) { f.loseFilter() },
		"foreign entry in the filter": func(f *fixture) {
			f.mu.Lock()
			f.filter[ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: vip2}}] = struct{}{}
			f.mu.Unlock()
		},
		"edit of a virtual server": func(f *fixture) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.kernel.Fail = nil
			key := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}
			real := netip.MustParseAddrPort("192.0.2.10:8080")
			for _, op := range []ipvs.Op{
				{Action: ipvs.EditVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "wlc"}},
				{Action: ipvs.AddReal, Virtual: key, Real: netip.MustParseAddrPort("192.0.2.99:1"), RealServer: ipvs.RealServer{Weight: 9}},
				{Action: ipvs.EditReal, Virtual: key, Real: real, RealServer: ipvs.RealServer{Weight: 0}},
			} {
				if _, err := f.kernel.Apply([]ipvs.Op{op}); err != nil {
					f.t.Error(err)
				}
			}
		},
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				v := baseView()
				service(v, "web", vip1, []uint16{80}, 2, "a")
				r := start(t, newFixture(t), &cluster{view: v, synced: true})
				defer r.stop()
				r.wantPlanned(t)
				lose(r.fixture)
				time.Sleep(2 * time.Second)
				r.wantPlanned(t)
				if strings.Contains(r.log.String(), "withdraw") {
					t.Errorf("withdrawn instead of restored:\n%s", r.log)
				}
			})
		})
	}
}

// A lost address is restored at once if the kernel reports the loss, and soon otherwise.
func TestRestoresAddress(t *testing.T) {
	for reported, within := range map[bool]time.Duration{true: time.Millisecond, false: dataplane.AddressesEvery + auditEvery} {
		inBubble(t, func(t *testing.T) {
			v := baseView()
			service(v, "web", vip1, []uint16{80}, 2, "a")
			r := start(t, newFixture(t), &cluster{view: v, synced: true})
			defer r.stop()
			r.wantPlanned(t)
			r.fixture.mu.Lock()
			delete(r.fixture.addrs, vip1)
			r.fixture.mu.Unlock()
			if reported {
				r.cluster.trigger.Resync()
			}
			time.Sleep(within)
			r.wantPlanned(t)
		})
	}
}

func TestForeignObjectsAreLeftAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		fail := f.kernel.Fail
		f.kernel.Fail = nil
		foreign := ipvs.Key{Addr: netip.MustParseAddr("198.51.100.9"), Protocol: ipvs.TCP, Port: 80}
		nodePort := ipvs.Key{Addr: vip2, Protocol: ipvs.TCP, Port: 30080} // of kube-proxy, on the node's address
		for _, key := range []ipvs.Key{foreign, nodePort} {
			if _, err := f.kernel.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "wlc"}}}); err != nil {
				t.Fatal(err)
			}
		}
		f.kernel.Fail = fail
		// A pool that contains an address of the node itself must not cut the node off.
		f.foreign[vip2] = struct{}{}
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "wrong", vip2, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		synctest.Wait()
		for _, key := range []ipvs.Key{foreign, nodePort} {
			if vs, ok := r.table(t)[key]; !ok || vs.Scheduler != "wlc" {
				t.Errorf("the foreign virtual server %v is gone or changed", key)
			}
		}
		f.mu.Lock()
		if has(f.addrs, vip2) || has(addressesOf(f.filter), vip2) || !has(f.addrs, vip1) || len(f.announced) != 1 {
			t.Errorf("addresses %v, filter %v, announced %v", f.addrs, f.filter, f.announced)
		}
		if h := r.speaker.Health(); h.Ready || !strings.Contains(h.Reason, "address 203.0.113.5 is allocated to a Service but assigned to this node") {
			t.Errorf("health %+v", h)
		}
		if got := f.statuses[vip2.String()]; got.Reason != view.DataPlaneNotReady || got.Announced {
			t.Errorf("status of the foreign address: %+v", got)
		}
		f.mu.Unlock()
		// The other addresses are still reconciled, and a lasting error is logged once.
		time.Sleep(time.Minute)
		key := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}
		f.mu.Lock()
		if _, err := f.kernel.Apply([]ipvs.Op{{Action: ipvs.DeleteReal, Virtual: key, Real: netip.MustParseAddrPort("192.0.2.10:8080")}}); err != nil {
			t.Error(err)
		}
		f.mu.Unlock()
		time.Sleep(2 * time.Second)
		if n := len(r.table(t)[key].RealServers); n != 2 {
			t.Errorf("%d real servers two seconds after one was deleted, want 2", n)
		}
		if n := strings.Count(r.log.String(), "reconcile failed"); n != 1 {
			t.Errorf("%d lines about one lasting error:\n%s", n, r.log)
		}
		r.stop()
		f.restart()
		f.bgp.published = routes.BGP{} // ironlb-bgpd has ended
		if err := Cleanup(t.Context(), f.node(), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if table := r.table(t); len(table) != 2 || len(f.addrs) > 0 || f.filter != nil {
			t.Errorf("after cleanup: %v %v %v", table, f.addrs, f.filter)
		}
	})
}

func TestKernelWithoutIPVS(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.noModule = true
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(f.announced) > 0 || f.changes > 0 {
			t.Errorf("announced %v, %d changes", f.announced, f.changes)
		}
		if h := r.speaker.Health(); h.Ready || !strings.Contains(h.Reason, "module ip_vs missing") {
			t.Errorf("health %+v", h)
		}
		if got := f.statuses[vip1.String()]; got.Reason != view.DataPlaneNotReady || got.Announced || got.Node != "" {
			t.Errorf("status %+v", got)
		}
		if n := strings.Count(r.log.String(), "\n"); n != 1 {
			t.Errorf("%d lines for one lasting error:\n%s", n, r.log)
		}
		f.mu.Lock()
		f.noModule = false // modprobe ip_vs
		f.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
	})
}

// A sysctl that the speaker may not write blocks new addresses. Programmed ones stay and are repaired.
func TestSysctlFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		f.mu.Lock()
		f.failSysctls.All = errInjected
		f.mu.Unlock()
		time.Sleep(auditEvery)
		r.set(func(v *view.View) {
			service(v, "web", vip1, []uint16{80}, 3, "a")
			service(v, "api", vip2, []uint16{80}, 1, "a")
		})
		synctest.Wait()
		f.mu.Lock()
		f.kernel.Flush()
		f.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := len(r.table(t)[ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}].RealServers); n != 3 {
			t.Errorf("%d real servers, want 3", n)
		}
		if h := r.speaker.Health(); h.Ready || !strings.Contains(h.Reason, errInjected.Error()) {
			t.Errorf("health %+v", h)
		}
		f.mu.Lock()
		if !has(f.announced, vip1) || has(f.announced, vip2) || has(f.addrs, vip2) {
			t.Errorf("announced %v, local %v; want only %v", f.announced, f.addrs, vip1)
		}
		f.failSysctls.All = nil
		f.mu.Unlock()
		time.Sleep(auditEvery)
		r.wantPlanned(t)
	})
}

// A restart adopts the state without a change, and announces again.
func TestRestartChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "old", vip2, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		changes := f.changes
		r.stop()
		if f.changes != changes || len(f.announced) != 2 {
			t.Errorf("stopping made %d changes, announced %v", f.changes-changes, f.announced)
		}
		f.restart()
		r = start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		if n := f.changes - changes; n > 2 { // the filter is rebuilt in one transaction, and conntrack is cleaned
			t.Errorf("%d changes after a restart:\n%s", n, r.log)
		}
		r.stop()
		// State whose Service was deleted while no speaker ran is removed.
		f.restart()
		delete(v.Services, pools.ServiceKey{Namespace: "default", Name: "old"})
		delete(v.VIPs, vip2.String())
		r = start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
	})
}

// A killed process may have left weights at 0. The next start corrects that.
func TestWeightsAreCorrectedAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		r.stop()
		f.restart()
		key := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}
		for real := range r.table(t)[key].RealServers {
			op := ipvs.Op{Action: ipvs.EditReal, Virtual: key, Real: real, RealServer: ipvs.RealServer{Weight: 0}}
			if _, err := f.kernel.Apply([]ipvs.Op{op}); err != nil {
				t.Fatal(err)
			}
		}
		r = start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
	})
}

// Metrics count VirtualIPs and Services by reason, including a Service whose port an older Service has.
func TestMetricsByReason(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "api", vip1, []uint16{80}, 1, "a")
		service(v, "web", vip1, []uint16{80}, 1, "a") // same port; later by name
		service(v, "idle", vip2, []uint16{80}, 0, "b", "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		synctest.Wait()
		want := `
# HELP ironlb_speaker_services Services by outcome on this node.
# TYPE ironlb_speaker_services gauge
ironlb_speaker_services{reason="NoEndpoint"} 1
ironlb_speaker_services{reason="PortConflict"} 1
ironlb_speaker_services{reason="Programmed"} 1
# HELP ironlb_speaker_vips VirtualIPs by reason on this node.
# TYPE ironlb_speaker_vips gauge
ironlb_speaker_vips{reason="NotOwner"} 1
ironlb_speaker_vips{reason="Owner"} 1
`
		if err := testutil.GatherAndCompare(r.registry, strings.NewReader(want), "ironlb_speaker_services", "ironlb_speaker_vips"); err != nil {
			t.Error(err)
		}
	})
}

// The duration of programming is measured only when something is programmed.
func TestProgrammingIsMeasured(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "api", vip1, []uint16{80}, 1, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		measured := func() (n uint64, took float64) {
			t.Helper()
			synctest.Wait()
			return r.measured(t, "program")
		}
		first, _ := measured()
		if first == 0 {
			t.Fatal("the first Service is not measured")
		}
		time.Sleep(time.Minute) // many reconciles that only observe
		if n, _ := measured(); n != first {
			t.Errorf("%d measured while nothing changed", n-first)
		}
		r.fixture.mu.Lock()
		r.slowAddresses = 3 * time.Second
		r.fixture.mu.Unlock()
		r.speaker.cfg.Trigger.resync.Store(true) // so the same reconcile observes the node
		r.set(func(v *view.View) { service(v, "web", vip2, []uint16{80}, 1, "b", "a") })
		time.Sleep(time.Minute)
		if n, took := measured(); n != first+1 || took < 3 || took > 4 {
			t.Errorf("%d measured in %v s, want 1", n-first, took)
		}
	})
}

// The network programming latency counts from the change in the cluster until it is programmed.
func TestNetworkProgrammingIsMeasured(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "api", vip1, []uint16{80}, 1, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		r.fixture.mu.Lock()
		r.slowAddresses = 3 * time.Second
		r.fixture.mu.Unlock()
		r.speaker.cfg.Trigger.resync.Store(true) // so the same reconcile observes the node
		r.touch(func(v *view.View) view.Touched {
			service(v, "web", vip2, []uint16{80}, 1, "b", "a")
			return view.Touched{All: true, Since: []time.Time{time.Now().Add(-2 * time.Second)}}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, took := r.measured(t, "network_programming"); n != 1 || took < 5 || took > 6 {
			t.Errorf("%d measured in %v s, want 1 in 5 s", n, took)
		}
	})
}

// TestFailedProgrammingIsMeasured: a change whose work fails counts once it is programmed, from the change on, whatever
// else happens meanwhile. Changes of other Services do not wait for it.
func TestFailedProgrammingIsMeasured(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		var fails atomic.Bool
		fail := f.kernel.Fail
		f.kernel.Fail = func(op ipvs.Op) error {
			if fails.Load() && op.Virtual.Addr == vip2 {
				return errInjected
			}
			return fail(op)
		}
		v := baseView()
		service(v, "api", vip1, []uint16{80}, 1, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		_, before := r.measured(t, "program")
		change := func(name string, vip netip.Addr, endpoints int) {
			r.touch(func(v *view.View) view.Touched {
				service(v, name, vip, []uint16{80}, endpoints, "a")
				key := pools.ServiceKey{Namespace: "default", Name: name}
				return view.Touched{Services: map[pools.ServiceKey]struct{}{key: {}}, Slices: map[pools.ServiceKey]struct{}{key: {}},
					VIPs: map[string]struct{}{vip.String(): {}}, Since: []time.Time{time.Now()}}
			})
			synctest.Wait()
		}
		fails.Store(true)
		change("web", vip2, 1)
		change("api", vip1, 2)
		if n, took := r.measured(t, "network_programming"); n != 1 || took > 1 {
			t.Errorf("%d measured in %v s, want that of the Service that is programmed", n, took)
		}
		for range 60 {
			r.touch(func(*view.View) view.Touched { return view.Touched{Host: true} }) // without effect
			time.Sleep(time.Second)
		}
		fails.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, took := r.measured(t, "network_programming"); n != 2 || took < 60 || took > 60+2*retryMax.Seconds() {
			t.Errorf("%d measured in %v s, want 2 in a minute", n, took)
		}
		if _, took := r.measured(t, "program"); took-before < 60 {
			t.Errorf("programmed in %v s, want a minute", took-before)
		}
	})
}

// measured returns the number of samples of a metric of durations, and their sum.
func (r *run) measured(t *testing.T, name string) (n uint64, took float64) {
	t.Helper()
	all, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range all {
		if of.GetName() == "ironlb_speaker_"+name+"_duration_seconds" {
			return of.Metric[0].Histogram.GetSampleCount(), of.Metric[0].Histogram.GetSampleSum()
		}
	}
	t.Error("the metric is missing")
	return 0, 0
}

func TestInterfaceLost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		r.touch(func(v *view.View) view.Touched {
			delete(v.Links, "eth0")
			return view.Touched{Links: map[string]struct{}{"eth0": {}}}
		})
		synctest.Wait()
		if c := r.detector.state().Claims[vip1.String()]; c.State != view.Declined {
			t.Errorf("got claim %+v", c)
		}
		if got := r.statuses[vip1.String()]; got.Reason != view.NoInterface || got.Announced {
			t.Errorf("status %+v", got)
		}
		if !strings.Contains(r.log.String(), "msg=withdraw address=203.0.113.4 vip=203.0.113.4 reason=NoInterface") {
			t.Errorf("log:\n%s", r.log)
		}
	})
}

// A virtual server that cannot be added blocks the announcement of its own address, and of no other.
func TestOneVirtualServerFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		fail := f.kernel.Fail
		f.kernel.Fail = func(op ipvs.Op) error {
			if op.Virtual.Addr == vip1 && op.Virtual.Port == 443 {
				return errInjected
			}
			return fail(op)
		}
		v := baseView()
		service(v, "web", vip1, []uint16{80, 443}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		synctest.Wait()
		if _, ok := f.announced[vip1]; ok || len(f.announced) != 1 {
			t.Errorf("announced %v", f.announced)
		}
		if got := f.statuses[vip1.String()].Reason; got != view.DataPlaneNotReady {
			t.Errorf("reason %s", got)
		}
		if has(f.addrs, vip1) {
			t.Error("its address is local although a port is missing")
		}
		f.mu.Lock()
		f.kernel.Fail = fail
		f.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
	})
}

// An address that can no longer be forwarded is withdrawn.
func TestWithdrawsWhatCannotBeRestored(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		r.fixture.mu.Lock()
		fail := r.kernel.Fail
		r.kernel.Fail = func(ipvs.Op) error { return errInjected }
		r.kernel.Flush()
		r.fixture.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !strings.Contains(r.log.String(), "msg=withdraw address=203.0.113.4 vip=203.0.113.4 reason=DataPlaneNotReady") {
			t.Errorf("not withdrawn:\n%s", r.log)
		}
		r.fixture.mu.Lock()
		r.kernel.Fail = fail
		r.fixture.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
	})
}

// While the filter cannot be changed, no virtual server is added, but existing ones follow their endpoints.
func TestFilterFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		r.fixture.mu.Lock()
		r.failFilter = errInjected
		r.fixture.mu.Unlock()
		r.set(func(v *view.View) {
			service(v, "web", vip1, []uint16{80}, 3, "a")
			service(v, "api", vip2, []uint16{80}, 1, "a")
		})
		synctest.Wait()
		table := r.table(t)
		if len(table) != 1 || len(table[ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}].RealServers) != 3 {
			t.Errorf("virtual servers:\n%v", table)
		}
		r.fixture.mu.Lock()
		r.failFilter = nil
		r.fixture.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
	})
}

// A virtual server that cannot be deleted keeps its filter element, which records its ownership, until it is deleted.
func TestDeletionFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		f.mu.Lock()
		fail := f.kernel.Fail
		f.kernel.Fail = func(op ipvs.Op) error {
			if op.Action == ipvs.DeleteVirtual {
				return errInjected
			}
			return fail(op)
		}
		f.mu.Unlock()
		r.set(func(v *view.View) {
			delete(v.Services, pools.ServiceKey{Namespace: "default", Name: "web"})
			delete(v.VIPs, vip1.String())
		})
		time.Sleep(time.Second)
		synctest.Wait()
		r.stop()
		f.restart()
		f.kernel.Fail = fail
		r = start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(time.Second)
		r.wantPlanned(t)
	})
}

// A change on a node that was edited since the last observation fails, observes and succeeds, without waiting for the
// audit.
func TestResyncsAfterAnError(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		r.kernel.Flush()
		r.set(func(v *view.View) { service(v, "web", vip1, []uint16{80}, 3, "a") })
		time.Sleep(retryFirst)
		r.wantPlanned(t)
	})
}

// After an interruption at any change, with or without a restart, the order was kept and the node converges to the
// plan.
func TestConvergesAfterAnyPrefix(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for failAt := 1; failAt < 30; failAt++ {
			t.Run(fmt.Sprint("restart ", restart, " at ", failAt), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					f := newFixture(t)
					v := baseView()
					service(v, "web", vip1, []uint16{80, 443}, 2, "a")
					f.failAt = failAt
					r := start(t, f, &cluster{view: v, synced: true})
					time.Sleep(time.Second)
					synctest.Wait()
					r.set(func(v *view.View) {
						service(v, "api", vip2, []uint16{80, 81}, 3, "a")
						delete(v.Services, pools.ServiceKey{Namespace: "default", Name: "web"})
						delete(v.VIPs, vip1.String())
					})
					time.Sleep(time.Second)
					synctest.Wait()
					if restart {
						r.stop()
						f.restart()
						r = start(t, f, &cluster{view: v, synced: true})
						synctest.Wait()
					}
					defer r.stop()
					f.mu.Lock()
					f.failAt = 0
					f.mu.Unlock()
					time.Sleep(2 * retryMax)
					r.wantPlanned(t)
				})
			})
		}
	}
}
