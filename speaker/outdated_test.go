package speaker

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// A Service takes the address and port of another one within one reconcile, and is not treated like it. The fixture
// checks that each real server is added after the stale filter elements are deleted. While the kernel refuses that,
// none is added.
func TestAddressIsAnotherServices(t *testing.T) {
	key := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}
	ranges := func(texts ...string) func(*view.Service) {
		return func(svc *view.Service) {
			svc.Restricted = true
			for _, text := range texts {
				svc.Sources = append(svc.Sources, netip.MustParsePrefix(text))
			}
		}
	}
	local := func(svc *view.Service) { svc.Local = true }
	for name, c := range map[string]struct {
		before, after func(*view.Service)
		stale         ipvs.Element
	}{
		"from Cluster to Local": {func(*view.Service) {}, local, ipvs.Element{Set: ipvs.Masqueraded, Key: key}},
		"to other source ranges": {ranges("198.51.100.0/25"), ranges("198.51.100.128/25"),
			ipvs.Element{Set: ipvs.Allowed, Key: key}.From(netip.MustParsePrefix("198.51.100.0/25"))},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				v := baseView()
				service(v, "old", vip1, []uint16{80}, 2, "a")
				edit(v, "old", c.before)
				r := start(t, newFixture(t), &cluster{view: v, synced: true})
				defer r.stop()
				r.wantPlanned(t)

				r.fixture.mu.Lock()
				r.refuse = map[ipvs.Element]bool{c.stale: true}
				r.fixture.mu.Unlock()
				r.set(func(v *view.View) {
					delete(v.Services, pools.ServiceKey{Namespace: "default", Name: "old"})
					service(v, "new", vip1, []uint16{80}, 4, "a")
					slice := v.Slices[pools.ServiceKey{Namespace: "default", Name: "new"}]["s"]
					slice.Endpoints = slice.Endpoints[1:] // one endpoint was the other Service's
					v.Slices[pools.ServiceKey{Namespace: "default", Name: "new"}]["s"] = slice
					edit(v, "new", c.after)
				})
				synctest.Wait()
				if reals := r.table(t)[key].RealServers; len(reals) != 1 {
					t.Errorf("real servers %v while the filter holds %v, want only the one that both have", reals, c.stale)
				}
				r.fixture.mu.Lock()
				r.refuse = nil
				r.fixture.mu.Unlock()
				time.Sleep(retryMax)
				r.wantPlanned(t)
			})
		})
	}
}

// If all sources are allowed now, the ranges are not deleted before the restriction.
func TestRangesEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		edit(v, "web", func(svc *view.Service) {
			svc.Restricted, svc.Sources = true, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/25")}
		})
		f := newFixture(t)
		f.level = slog.LevelDebug
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		before := len(r.log.String())
		r.set(func(v *view.View) {
			edit(v, "web", func(svc *view.Service) { svc.Restricted, svc.Sources = false, nil })
		})
		r.wantPlanned(t)
		log := r.log.String()[before:]
		if !strings.Contains(log, `"set filter" elements=2`) || strings.Count(log, `"set filter"`) != 1 {
			t.Errorf("the restriction and its range do not go in one step:\n%s", log)
		}
		if strings.Count(log, "level=INFO") != 1 || !strings.Contains(log, `level=INFO msg="set allowed sources" service=default/web`) {
			t.Errorf("the Service has not one line:\n%s", log)
		}
	})
}

func edit(v *view.View, name string, change func(*view.Service)) {
	key := pools.ServiceKey{Namespace: "default", Name: name}
	svc := v.Services[key]
	change(&svc)
	v.Services[key] = svc
}
