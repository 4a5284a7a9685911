package allocation

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
)

// TestDivergence: while another writer keeps changing a Service, it is repaired with growing delays. After a
// period without changes the delay starts over. Several changes within one delay are repaired once.
func TestDivergence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "203.0.113.4/31", ccmtest.ServiceFor("unrelated"))
		good := ccmtest.ServiceFor("s")
		f.Expect(f.Ensure(good), "1 writes, 203.0.113.4 Proxy, Allocated")
		bad := good.DeepCopy()
		bad.Status.LoadBalancer = v1.LoadBalancerStatus{}
		unbound := good.DeepCopy()
		unbound.Finalizers = nil

		woken := make(chan time.Time, 100)
		h := newDivergence(f.Lb.Registrar, func(pools.ServiceKey) { woken <- time.Now() }).handler(t.Context())
		repaired := func(svc *v1.Service) time.Duration {
			t.Helper()
			start := time.Now()
			for range 3 {
				h.OnUpdate(good, svc)
			}
			at := <-woken
			h.OnUpdate(svc, good)
			time.Sleep(time.Second)
			if len(woken) > 0 {
				t.Fatal("woken more than once")
			}
			return at.Sub(start)
		}
		var got []time.Duration
		for range 13 {
			got = append(got, repaired(bad))
		}
		ms := time.Millisecond
		want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 12800 * ms, 25600 * ms, 51200 * ms, 102400 * ms, 204800 * ms, repairLast}
		if !slices.Equal(got, want) {
			t.Errorf("repaired after %v, want %v", got, want)
		}
		time.Sleep(repairLast)
		if w := repaired(bad); w != repairLast {
			t.Errorf("the other one continues: after %v", w)
		}
		time.Sleep(repairReset + time.Second)
		if w := repaired(unbound); w != repairFirst {
			t.Errorf("the finalizer, after a time of calm: after %v", w)
		}
		h.OnUpdate(bad, good)
		time.Sleep(time.Hour)
		if len(woken) > 0 {
			t.Error("woken without a change")
		}
	})
}
