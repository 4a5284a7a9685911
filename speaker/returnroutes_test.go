package speaker

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

var gateway = netip.MustParseAddr("192.0.2.254")

// withReturnRoutes gives the pool of the address a return route, and this node the interface for it.
func withReturnRoutes(v *view.View) {
	network := netip.MustParsePrefix("192.0.2.0/24")
	v.Links["eth1"] = view.Link{Name: "eth1", Subnets: []netip.Prefix{network}}
	v.Pools["lan"] = view.Pool{
		Ranges:       []pools.Range{{First: vip1, Last: vip1}},
		ReturnRoutes: []pools.ReturnRoute{{Gateway: gateway}},
	}
}

func (r *run) returnsNow() (have []ipvs.ReturnRoute, applied int) {
	r.fixture.mu.Lock()
	defer r.fixture.mu.Unlock()
	return r.fixture.returns.have, r.fixture.returns.applied
}

// wantReturns wants the return route in effect and published, or none.
func (r *run) wantReturns(t *testing.T, want bool, when string) {
	t.Helper()
	have, _ := r.returnsNow()
	inEffect := len(have) == 1 && have[0].Gateway == gateway && have[0].Interface == "eth1"
	if inEffect != want || !want && len(have) != 0 {
		t.Errorf("%s: return routes %v, want one %v", when, have, want)
	}
	published := false
	for _, p := range r.nodeStatus.ReturnRoutes {
		published = published || p.Pool == "lan" && p.InEffect && p.Gateway == gateway
	}
	if published != want {
		t.Errorf("%s: published %v, want one in effect %v", when, r.nodeStatus.ReturnRoutes, want)
	}
}

// Return routes are programmed with their pool, restored, adopted after a restart and removed with the field, and a
// failed change is retried.
func TestReturnRoutes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := directView()
		withReturnRoutes(v)
		r := start(t, f, &cluster{view: v, synced: true})
		time.Sleep(time.Second)
		r.wantReturns(t, true, "at the start")

		f.mu.Lock()
		f.returns.have, f.returns.harmed = nil, true // by another program
		f.mu.Unlock()
		time.Sleep(2 * time.Second)
		r.wantReturns(t, true, "after a change by another program")
		_, before := r.returnsNow()
		time.Sleep(10 * time.Second)
		if _, after := r.returnsNow(); after != before {
			t.Errorf("applied %d times without a change", after-before)
		}

		r.stop()
		f.restart()
		r = start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(time.Second)
		r.wantReturns(t, true, "after a restart")

		f.mu.Lock()
		f.failAt = f.changes + 1
		f.mu.Unlock()
		r.set(func(v *view.View) {
			pool := v.Pools["lan"]
			pool.ReturnRoutes = nil
			v.Pools["lan"] = pool
		})
		time.Sleep(time.Second)
		f.mu.Lock()
		f.failAt = 0
		f.mu.Unlock()
		time.Sleep(2 * retryMax)
		synctest.Wait()
		r.wantReturns(t, false, "without the field")
	})
}

// A node without a return route is not forwarded to directly: at once at its start, and after a while if the interface
// is lost later. It reports the reason.
func TestMissingReturnRoute(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := directView()
		withReturnRoutes(v)
		link := v.Links["eth1"]
		delete(v.Links, "eth1")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(time.Second)
		if r.directedNow() {
			t.Error("directed without a return route")
		}
		if all := r.nodeStatus.ReturnRoutes; len(all) != 1 || all[0].InEffect || all[0].Missing == "" {
			t.Errorf("published %v, want the reason", all)
		}
		r.set(func(v *view.View) { v.Links["eth1"] = link })
		time.Sleep(time.Second)
		r.wantReturns(t, true, "with the interface")
		if !r.directedNow() {
			t.Error("not directed with a return route")
		}
		r.set(func(v *view.View) { delete(v.Links, "eth1") })
		time.Sleep(returnPatience / 2)
		if !r.directedNow() {
			t.Error("not directed at once after the interface is lost")
		}
		time.Sleep(returnPatience)
		if r.directedNow() {
			t.Error("directed long after the interface is lost")
		}
	})
}
