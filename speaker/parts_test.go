package speaker

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/view"
)

func named(name string) pools.ServiceKey { return pools.ServiceKey{Namespace: "default", Name: name} }

// touchService changes one Service as its informer does.
func (r *run) touchService(name string, change func(svc *view.Service, slice *view.Slice)) {
	r.touch(func(v *view.View) view.Touched {
		key := named(name)
		svc, slice := v.Services[key], v.Slices[key]["s"]
		change(&svc, &slice)
		v.Services[key], v.Slices[key] = svc, map[string]view.Slice{"s": slice}
		return view.Touched{Services: map[pools.ServiceKey]struct{}{key: {}}}
	})
}

// A rejected filter element keeps its own address from being served, and no other address.
func TestOneElementFails(t *testing.T) {
	for _, refused := range []ipvs.Element{
		{Set: ipvs.Addresses, Key: ipvs.Key{Addr: vip1}},
		{Set: ipvs.Masqueraded, Key: ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}},
	} {
		t.Run(refused.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFixture(t)
				r := start(t, f, &cluster{view: baseView(), synced: true})
				defer r.stop()
				r.wantPlanned(t)
				f.mu.Lock()
				f.refuse = map[ipvs.Element]bool{refused: true}
				f.mu.Unlock()
				r.set(func(v *view.View) {
					service(v, "web", vip1, []uint16{80}, 2, "a")
					service(v, "api", vip2, []uint16{80}, 2, "a")
				})
				synctest.Wait()
				f.mu.Lock()
				if len(r.table(t)) != 1 || has(f.addrs, vip1) || !has(f.announced, vip2) || has(f.announced, vip1) {
					t.Errorf("virtual servers:\n%vlocal %v, announced %v", r.table(t), f.addrs, f.announced)
				}
				if h := r.speaker.Health(); h.Ready || !strings.Contains(h.Reason, refused.String()) {
					t.Errorf("health %+v", h)
				}
				f.refuse = nil
				f.mu.Unlock()
				time.Sleep(retryMax)
				r.wantPlanned(t)
			})
		})
	}
}

// A failure is retried with backoff and does not block other work.
func TestBacksOff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		fail, tries := f.kernel.Fail, 0
		f.kernel.Fail = func(op ipvs.Op) error {
			if op.Virtual.Addr == vip1 {
				tries++
				return errInjected
			}
			return fail(op)
		}
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 1, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		f.mu.Lock()
		before := tries
		f.mu.Unlock()
		if before < 6 || before > 20 {
			t.Errorf("%d tries in a minute", before)
		}
		for range 20 {
			r.touchService("api", func(_ *view.Service, slice *view.Slice) {
				slice.Endpoints = append(slice.Endpoints, view.Endpoint{Node: "a", Ready: true, Serving: true,
					Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + len(slice.Endpoints))})})
			})
			synctest.Wait()
		}
		f.mu.Lock()
		if n := len(r.table(t)[ipvs.Key{Addr: vip2, Protocol: ipvs.TCP, Port: 80}].RealServers); n != 21 {
			t.Errorf("%d real servers, want 21", n)
		}
		if tries > before+1 {
			t.Errorf("changes of another made %d tries", tries-before)
		}
		f.kernel.Fail = fail
		f.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
	})
}

// A change of an endpoint triggers neither an announcement nor an API write.
func TestEndpointsAreNotAnnounced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 2, "b", "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		publishes, reports := f.announcements, f.reports
		for _, name := range []string{"web", "api"} {
			r.touchService(name, func(_ *view.Service, slice *view.Slice) { slice.Endpoints = slice.Endpoints[:1] })
			r.wantPlanned(t)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.announcements != publishes || f.reports != reports {
			t.Errorf("%d announcements, %d reports", f.announcements-publishes, f.reports-reports)
		}
	})
}

// Health check ports follow their Services. A port that cannot be served is reported and retried.
func TestHealthPorts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		f.mu.Lock()
		f.failPorts = map[pools.ServiceKey]error{named("web"): errors.New("port 30123 is taken")}
		f.mu.Unlock()
		r.touchService("web", func(svc *view.Service, _ *view.Slice) {
			svc.Local, svc.NodePorts, svc.HealthCheckNodePort = true, true, 30123
		})
		synctest.Wait()
		if h := r.speaker.Health(); h.Ready || !strings.Contains(h.Reason, "port 30123 is taken") {
			t.Errorf("health %+v", h)
		}
		f.mu.Lock()
		f.failPorts = nil
		f.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
		if f.ports[named("web")].IPv4Endpoints != 2 {
			t.Errorf("health ports %v", f.ports)
		}
		r.touchService("web", func(_ *view.Service, slice *view.Slice) { slice.Endpoints = slice.Endpoints[:1] })
		r.wantPlanned(t)
		r.touchService("web", func(svc *view.Service, _ *view.Slice) { svc.Local = false })
		r.wantPlanned(t)
		if len(f.ports) > 0 {
			t.Errorf("health ports %v after the policy changed", f.ports)
		}
	})
}

// A terminating endpoint keeps its connections up to the limit and is then deleted without another event.
func TestDrainEnds(t *testing.T) {
	limited := options
	limited.DrainLimit = 90 * time.Second
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := startWith(t, f, &cluster{view: v, synced: true}, limited)
		defer r.stop()
		synctest.Wait()
		r.touchService("web", func(_ *view.Service, slice *view.Slice) {
			slice.Endpoints[0].Ready, slice.Endpoints[0].Terminating = false, true
		})
		synctest.Wait()
		key := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}
		drains := netip.MustParseAddrPort("192.0.2.10:8080")
		time.Sleep(89 * time.Second)
		synctest.Wait()
		if real, there := r.table(t)[key].RealServers[drains]; !there || real.Weight != 0 {
			t.Errorf("before the limit: %v, %v", real, there)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := len(r.table(t)[key].RealServers); n != 1 {
			t.Errorf("%d real servers after the limit, want 1", n)
		}
	})
}

// The virtual servers of an IPVS are verified round robin, without lists: an edit is restored within ten seconds, a
// flush with the next audit. If that takes long, it takes 1 % of the time, and a flush is restored as soon.
func TestVerifiesRoundRobin(t *testing.T) {
	for _, c := range []struct {
		name        string
		slow        time.Duration
		least, most int // virtual servers verified in 90 s
		edit        time.Duration
	}{
		{"fast", 0, 10 * 2000, 12 * 2000, 10 * time.Second},
		{"slow", time.Millisecond, 800, 1200, 250 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFixture(t)
				v := baseView()
				var ports []uint16
				for i := range uint16(2000) {
					ports = append(ports, 80+i)
				}
				service(v, "web", vip1, ports, 2, "a")
				r := start(t, f, &cluster{view: v, synced: true})
				defer r.stop()
				time.Sleep(10 * time.Second)
				f.mu.Lock()
				f.slowSame = c.slow
				lists, verified := f.lists, f.verified
				f.mu.Unlock()
				time.Sleep(90 * time.Second)
				f.mu.Lock()
				if n := f.verified - verified; n < c.least || n > c.most {
					t.Errorf("%d virtual servers verified in 90 s, want %d to %d", n, c.least, c.most)
				}
				if f.lists > lists {
					t.Errorf("%d lists without a change", f.lists-lists)
				}
				f.mu.Unlock()
				f.kernel.Flush()
				time.Sleep(auditEvery + 2*c.slow)
				r.wantPlanned(t)
				key := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 300}
				edit := ipvs.Op{Action: ipvs.EditVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "wlc"}}
				_, _ = f.kernel.Apply([]ipvs.Op{edit})
				time.Sleep(c.edit)
				r.wantPlanned(t)
			})
		})
	}
}

// Another program's virtual server of an address of IronLB is deleted: one of IPv4 at once, of IPv6 within a minute.
func TestAddedVirtualServerIsDeleted(t *testing.T) {
	six := netip.MustParseAddr("2001:db8::4")
	for addr, within := range map[netip.Addr]time.Duration{vip1: auditEvery, six: time.Minute + auditEvery} {
		inBubble(t, func(t *testing.T) {
			v := baseView()
			service(v, "web", addr, []uint16{80}, 2, "a")
			if addr.Is6() {
				for i := range v.Slices[named("web")]["s"].Endpoints {
					v.Slices[named("web")]["s"].Endpoints[i].Addr = netip.MustParseAddr(fmt.Sprintf("2001:db8:1::1%d", i))
				}
			}
			f := newFixture(t)
			r := start(t, f, &cluster{view: v, synced: true})
			defer r.stop()
			time.Sleep(10 * time.Second)
			r.wantPlanned(t)
			key := ipvs.Key{Addr: addr, Protocol: ipvs.UDP, Port: 53}
			f.mu.Lock()
			fail := f.kernel.Fail
			f.kernel.Fail = nil
			_, _ = f.kernel.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "rr"}}})
			f.kernel.Fail = fail
			f.mu.Unlock()
			time.Sleep(within)
			r.wantPlanned(t)
		})
	}
}

// An IPv6 sysctl that cannot be set blocks no IPv4 address, and a sysctl for limits blocks no address.
func TestSysctlErrorsByAddress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.failSysctls = dataplane.SysctlErrors{IPv6: errInjected, Limits: errInjected}
		v := baseView()
		six := netip.MustParseAddr("2001:db8::4")
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "six", six, []uint16{80}, 1, "a")
		v.Slices[named("six")]["s"].Endpoints[0].Addr = netip.MustParseAddr("2001:db8:1::10")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		want := func(ipv6, ready bool) {
			t.Helper()
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			if !has(f.announced, vip1) || has(f.announced, six) != ipv6 || has(f.addrs, six) != ipv6 {
				t.Errorf("announced %v, local %v", f.announced, f.addrs)
			}
			if h := r.speaker.Health(); h.Ready != ready {
				t.Errorf("health %+v, want ready: %v", h, ready)
			}
		}
		want(false, false)
		for _, wrong := range []dataplane.SysctlErrors{{Limits: errInjected}, {}} {
			f.mu.Lock()
			f.failSysctls = wrong
			f.mu.Unlock()
			time.Sleep(auditEvery)
			want(true, wrong.Limits == nil)
		}
	})
}

// The IPv6 sysctls are set if IPv6 is served, before any IPv6 address is announced.
func TestSysctlsOfIPv6(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		if f.ipv6 {
			t.Error("set although nothing of IPv6 is served")
		}
		six := netip.MustParseAddr("2001:db8::4")
		r.set(func(v *view.View) {
			service(v, "six", six, []uint16{80}, 1, "a")
			v.Slices[named("six")]["s"].Endpoints[0].Addr = netip.MustParseAddr("2001:db8:1::10")
		})
		r.wantPlanned(t)
		if !f.ipv6 || !has(f.announced, six) {
			t.Errorf("set: %v, announced %v", f.ipv6, f.announced)
		}
		r.stop()
		f.restart()
		f.ipv6 = false
		r = start(t, f, r.cluster)
		r.wantPlanned(t)
		if !f.ipv6 {
			t.Error("not set by the next process")
		}
		r.stop()
	})
}
