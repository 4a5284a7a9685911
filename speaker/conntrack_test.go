package speaker

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// dnsKey and webKey are the virtual servers of dnsService.
var (
	dnsKey = ipvs.Key{Addr: vip1, Protocol: ipvs.UDP, Port: 53}
	webKey = ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}
)

func dnsService(v *view.View) {
	service(v, "dns", vip1, []uint16{53, 80}, 2, "a")
	v.Services[named("dns")].Ports[0].Protocol = ipvs.UDP
	v.Slices[named("dns")]["s"].Ports[0].Protocol = ipvs.UDP
}

// wantCleaned checks which virtual servers conntrack was cleaned for since the last call.
func (r *run) wantCleaned(t *testing.T, when string, want ...ipvs.Key) {
	t.Helper()
	synctest.Wait()
	r.fixture.mu.Lock()
	defer r.fixture.mu.Unlock()
	slices.SortFunc(r.cleaned, ipvs.Key.Compare)
	slices.SortFunc(want, ipvs.Key.Compare)
	if got := slices.Compact(r.cleaned); !slices.Equal(got, want) {
		t.Errorf("%s: conntrack is cleaned of %v, want %v", when, got, want)
	}
	r.cleaned = nil
}

// Conntrack is cleaned of entries that lead clients to deleted or draining endpoints, that bypass a new virtual server
// (UDP), or that bypass a new address (all protocols).
func TestConntrack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		dnsService(v)
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantCleaned(t, "new", dnsKey, webKey)
		endpoints := func(n int) {
			r.touchService("dns", func(_ *view.Service, slice *view.Slice) { slice.Endpoints = slice.Endpoints[:n] })
		}
		endpoints(1)
		r.wantCleaned(t, "one gone", dnsKey, webKey)
		endpoints(2)
		r.wantCleaned(t, "one more")
		endpoints(0)
		r.wantCleaned(t, "all gone", dnsKey, webKey)
		endpoints(1)
		r.wantCleaned(t, "the first", dnsKey)
		endpoints(2)
		r.wantCleaned(t, "the second")
		r.touchService("dns", func(_ *view.Service, slice *view.Slice) { slice.Endpoints[0].Ready = false })
		r.wantCleaned(t, "one not ready", dnsKey) // for TCP the endpoint is assumed to answer
		r.touchService("dns", func(_ *view.Service, slice *view.Slice) { slice.Endpoints[0].Ready = true })
		r.wantCleaned(t, "ready again")
		f.mu.Lock()
		f.failAt = f.changes + 5 // two real servers of each protocol are deleted, and then conntrack fails
		f.mu.Unlock()
		endpoints(0)
		synctest.Wait()
		if h := r.speaker.Health(); h.Ready {
			t.Error("ready although conntrack was not cleaned")
		}
		r.wantCleaned(t, "in vain")
		f.mu.Lock()
		f.failAt = 0
		f.mu.Unlock()
		time.Sleep(retryMax)
		r.wantCleaned(t, "later", dnsKey, webKey)
		r.wantPlanned(t)
		r.stop()
		f.restart()
		r = start(t, f, r.cluster)
		defer r.stop()
		r.wantCleaned(t, "another process", dnsKey)
	})
}

// TCP connections to a deleted virtual server continue where the data plane permits: its endpoints may be alive. They
// end when another Service takes the address and port.
func TestConntrackVirtualGone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		dnsService(v)
		service(v, "other", vip1, []uint16{443}, 1, "a")
		dns, other := named("dns"), named("other")
		vip := v.VIPs[vip1.String()]
		vip.Services = []pools.ServiceKey{dns, other}
		v.VIPs[vip1.String()] = vip
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		httpsKey := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 443}
		r.wantPlanned(t)
		r.wantCleaned(t, "new", dnsKey, webKey, httpsKey)
		gone := v.Services[dns]
		r.set(func(v *view.View) { delete(v.Services, dns) })
		r.wantPlanned(t)
		r.wantCleaned(t, "gone", dnsKey)
		r.set(func(v *view.View) { v.Services[dns] = gone })
		r.wantPlanned(t)
		r.wantCleaned(t, "another", dnsKey, webKey)
	})
}

// After a cleanup that took some time, the next one waits a multiple of that time, at most a second. The first cleanup
// after such a pause starts at once. Deferred entries are cleaned without another change, and deletions are logged.
func TestConntrackShare(t *testing.T) {
	for took, rest := range map[time.Duration]time.Duration{
		10 * time.Millisecond:  200 * time.Millisecond,
		100 * time.Millisecond: time.Second,
	} {
		inBubble(t, func(t *testing.T) {
			f := newFixture(t)
			f.slowClean, f.entries, f.level = took, 3, slog.LevelDebug
			v := baseView()
			service(v, "web", vip1, []uint16{80}, 200, "a")
			service(v, "api", vip2, []uint16{80}, 200, "a")
			r := start(t, f, &cluster{view: v, synced: true})
			defer r.stop()
			time.Sleep(took)
			r.wantCleaned(t, "new", webKey, ipvs.Key{Addr: vip2, Protocol: ipvs.TCP, Port: 80})
			time.Sleep(5 * time.Second)
			f.cleanings = nil
			fewer := func(name string) {
				r.touchService(name, func(_ *view.Service, slice *view.Slice) {
					slice.Endpoints = slice.Endpoints[:len(slice.Endpoints)-1]
				})
			}
			began := time.Now()
			fewer("web")
			time.Sleep(took)
			r.wantCleaned(t, "the first at once", webKey)
			for time.Since(began) < 3*time.Second {
				fewer("web")
				fewer("api")
				time.Sleep(50 * time.Millisecond)
			}
			fewer("api") // as late as possible
			time.Sleep(rest + took)
			r.wantCleaned(t, "by itself", webKey, ipvs.Key{Addr: vip2, Protocol: ipvs.TCP, Port: 80})
			f.mu.Lock()
			ends := slices.Clone(f.cleanings)
			f.mu.Unlock()
			for i, end := range ends {
				if i > 0 && end.Sub(ends[i-1]) < rest+took {
					t.Errorf("cleaned %v after the last, want %v at least", end.Sub(ends[i-1]), rest+took)
				}
			}
			if most := int(4*time.Second/rest) + 1; len(ends) < 3 || len(ends) > most {
				t.Errorf("cleaned %d times, want 3 to %d", len(ends), most)
			}
			if log := r.log.String(); !strings.Contains(log, `msg="delete conntrack entries" count=3 reason=Planned`) {
				t.Errorf("log: %s", log)
			}
			time.Sleep(10 * time.Second)
			r.wantCleaned(t, "ten seconds later")
		})
	}
}

// After a node died, conntrack is cleaned at once, without the pause: a client retransmits its SYN after one second.
func TestConntrackNodeDied(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.reach = &fixtureReach{}
		f.slowClean = 100 * time.Millisecond // pause of one second
		v := baseView()
		v.Nodes["b"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 3, "a")
		v.Slices[named("web")]["s"].Endpoints[1].Node = "b"
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(5 * time.Second)
		r.wantPlanned(t)
		f.mu.Lock()
		f.cleaned = nil
		f.mu.Unlock()
		r.touchService("api", func(_ *view.Service, slice *view.Slice) { slice.Endpoints = slice.Endpoints[:2] })
		time.Sleep(2 * f.slowClean)
		r.wantCleaned(t, "an endpoint went", ipvs.Key{Addr: vip2, Protocol: ipvs.TCP, Port: 80})
		f.reach.set("b")
		time.Sleep(2 * f.slowClean)
		r.wantCleaned(t, "a node died", webKey)
	})
}
