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
				w := newWorld(t)
				r := start(t, w, &cluster{view: baseView(), synced: true})
				defer r.stop()
				r.wantPlanned(t)
				w.mu.Lock()
				w.refuse = map[ipvs.Element]bool{refused: true}
				w.mu.Unlock()
				r.set(func(v *view.View) {
					service(v, "web", vip1, []uint16{80}, 2, "a")
					service(v, "api", vip2, []uint16{80}, 2, "a")
				})
				synctest.Wait()
				w.mu.Lock()
				if len(r.table(t)) != 1 || has(w.addrs, vip1) || !has(w.announced, vip2) || has(w.announced, vip1) {
					t.Errorf("virtual servers:\n%vlocal %v, announced %v", r.table(t), w.addrs, w.announced)
				}
				if h := r.speaker.Health(); h.Ready || !strings.Contains(h.Reason, refused.String()) {
					t.Errorf("health %+v", h)
				}
				w.refuse = nil
				w.mu.Unlock()
				time.Sleep(retryMax)
				r.wantPlanned(t)
			})
		})
	}
}

// A failure is retried with backoff and does not block other work.
func TestBacksOff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		fail, tries := w.kernel.Fail, 0
		w.kernel.Fail = func(op ipvs.Op) error {
			if op.Virtual.Addr == vip1 {
				tries++
				return errInjected
			}
			return fail(op)
		}
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 1, "a")
		r := start(t, w, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.mu.Lock()
		before := tries
		w.mu.Unlock()
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
		w.mu.Lock()
		if n := len(r.table(t)[ipvs.Key{Addr: vip2, Protocol: ipvs.TCP, Port: 80}].RealServers); n != 21 {
			t.Errorf("%d real servers, want 21", n)
		}
		if tries > before+1 {
			t.Errorf("changes of another made %d tries", tries-before)
		}
		w.kernel.Fail = fail
		w.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
	})
}

// A change of an endpoint triggers neither an announcement nor an API write.
func TestEndpointsAreNotAnnounced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 2, "b", "a")
		r := start(t, w, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		publishes, reports := w.announcements, w.reports
		for _, name := range []string{"web", "api"} {
			r.touchService(name, func(_ *view.Service, slice *view.Slice) { slice.Endpoints = slice.Endpoints[:1] })
			r.wantPlanned(t)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.announcements != publishes || w.reports != reports {
			t.Errorf("%d announcements, %d reports", w.announcements-publishes, w.reports-reports)
		}
	})
}

// Health check ports follow their Services. A port that cannot be served is reported and retried.
func TestHealthPorts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, w, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		w.mu.Lock()
		w.failPorts = map[pools.ServiceKey]error{named("web"): errors.New("port 30123 is taken")}
		w.mu.Unlock()
		r.touchService("web", func(svc *view.Service, _ *view.Slice) {
			svc.Local, svc.NodePorts, svc.HealthCheckNodePort = true, true, 30123
		})
		synctest.Wait()
		if h := r.speaker.Health(); h.Ready || !strings.Contains(h.Reason, "port 30123 is taken") {
			t.Errorf("health %+v", h)
		}
		w.mu.Lock()
		w.failPorts = nil
		w.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
		if w.ports[named("web")].IPv4Endpoints != 2 {
			t.Errorf("health ports %v", w.ports)
		}
		r.touchService("web", func(_ *view.Service, slice *view.Slice) { slice.Endpoints = slice.Endpoints[:1] })
		r.wantPlanned(t)
		r.touchService("web", func(svc *view.Service, _ *view.Slice) { svc.Local = false })
		r.wantPlanned(t)
		if len(w.ports) > 0 {
			t.Errorf("health ports %v after the policy changed", w.ports)
		}
	})
}

// A terminating endpoint keeps its connections up to the limit and is then deleted without another event.
func TestDrainEnds(t *testing.T) {
	limited := options
	limited.DrainLimit = 90 * time.Second
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := startWith(t, w, &cluster{view: v, synced: true}, limited)
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
				w := newWorld(t)
				v := baseView()
				var ports []uint16
				for i := range uint16(2000) {
					ports = append(ports, 80+i)
				}
				service(v, "web", vip1, ports, 2, "a")
				r := start(t, w, &cluster{view: v, synced: true})
				defer r.stop()
				time.Sleep(10 * time.Second)
				w.mu.Lock()
				w.slowSame = c.slow
				lists, verified := w.lists, w.verified
				w.mu.Unlock()
				time.Sleep(90 * time.Second)
				w.mu.Lock()
				if n := w.verified - verified; n < c.least || n > c.most {
					t.Errorf("%d virtual servers verified in 90 s, want %d to %d", n, c.least, c.most)
				}
				if w.lists > lists {
					t.Errorf("%d lists without a change", w.lists-lists)
				}
				w.mu.Unlock()
				w.kernel.Flush()
				time.Sleep(auditEvery + 2*c.slow)
				r.wantPlanned(t)
				key := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 300}
				edit := ipvs.Op{Action: ipvs.EditVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "wlc"}}
				_, _ = w.kernel.Apply([]ipvs.Op{edit})
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
			w := newWorld(t)
			r := start(t, w, &cluster{view: v, synced: true})
			defer r.stop()
			time.Sleep(10 * time.Second)
			r.wantPlanned(t)
			key := ipvs.Key{Addr: addr, Protocol: ipvs.UDP, Port: 53}
			w.mu.Lock()
			fail := w.kernel.Fail
			w.kernel.Fail = nil
			_, _ = w.kernel.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "rr"}}})
			w.kernel.Fail = fail
			w.mu.Unlock()
			time.Sleep(within)
			r.wantPlanned(t)
		})
	}
}

// An IPv6 sysctl that cannot be set blocks no IPv4 address, and a sysctl for limits blocks no address.
func TestSysctlErrorsByAddress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.failSysctls = dataplane.SysctlErrors{IPv6: errInjected, Limits: errInjected}
		v := baseView()
		six := netip.MustParseAddr("2001:db8::4")
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "six", six, []uint16{80}, 1, "a")
		v.Slices[named("six")]["s"].Endpoints[0].Addr = netip.MustParseAddr("2001:db8:1::10")
		r := start(t, w, &cluster{view: v, synced: true})
		defer r.stop()
		want := func(ipv6, ready bool) {
			t.Helper()
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if !has(w.announced, vip1) || has(w.announced, six) != ipv6 || has(w.addrs, six) != ipv6 {
				t.Errorf("announced %v, local %v", w.announced, w.addrs)
			}
			if h := r.speaker.Health(); h.Ready != ready {
				t.Errorf("health %+v, want ready: %v", h, ready)
			}
		}
		want(false, false)
		for _, wrong := range []dataplane.SysctlErrors{{Limits: errInjected}, {}} {
			w.mu.Lock()
			w.failSysctls = wrong
			w.mu.Unlock()
			time.Sleep(auditEvery)
			want(true, wrong.Limits == nil)
		}
	})
}

// The IPv6 sysctls are set if IPv6 is served, before any IPv6 address is announced.
func TestSysctlsOfIPv6(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, w, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		if w.ipv6 {
			t.Error("set although nothing of IPv6 is served")
		}
		six := netip.MustParseAddr("2001:db8::4")
		r.set(func(v *view.View) {
			service(v, "six", six, []uint16{80}, 1, "a")
			v.Slices[named("six")]["s"].Endpoints[0].Addr = netip.MustParseAddr("2001:db8:1::10")
		})
		r.wantPlanned(t)
		if !w.ipv6 || !has(w.announced, six) {
			t.Errorf("set: %v, announced %v", w.ipv6, w.announced)
		}
		r.stop()
		w.restart()
		w.ipv6 = false
		r = start(t, w, r.cluster)
		r.wantPlanned(t)
		if !w.ipv6 {
			t.Error("not set by the next process")
		}
		r.stop()
	})
}
