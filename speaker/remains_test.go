package speaker

import (
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
)

// A process that plans from a snapshot adds what is lacking and removes nothing that an earlier process made, which may have known better; what it
// made itself it follows. When every list has come what is left over goes.
func TestSnapshotRemovesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		vip3 := netip.MustParseAddr("203.0.113.6")
		w := newWorld(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 3, "a")
		service(v, "later", vip2, []uint16{80, 443}, 2, "a")
		r := start(t, w, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		r.stop()
		w.restart()
		before := r.table(t)
		filter := maps.Clone(w.filter)

		old := baseView()
		old.Stale = true
		service(old, "web", vip1, []uint16{80}, 2, "a")
		service(old, "lost", vip3, []uint16{80}, 1, "a")
		r = start(t, w, &cluster{view: old, synced: true})
		defer func() { r.stop() }()
		look := func() {
			t.Helper()
			synctest.Wait()
			if h := r.speaker.Health(); !h.Ready {
				t.Errorf("not ready: %s", h.Reason)
			}
			have := r.table(t)
			for key, vs := range before {
				if now, is := have[key]; !is || now.Settings != vs.Settings || !maps.Equal(now.RealServers, vs.RealServers) {
					t.Errorf("%v is %v, was %v", key, have[key], vs)
				}
			}
			if !has(w.addrs, vip1) || !has(w.addrs, vip2) {
				t.Errorf("local addresses are %v", w.addrs)
			}
			for e := range filter {
				if !has(w.filter, e) {
					t.Errorf("the filter lacks %v", e)
				}
			}
			if _, announced := w.announced[vip2]; announced || !has(w.announced, vip1) {
				t.Errorf("announced is %v", w.announced)
			}
		}
		look()
		if !has(w.addrs, vip3) || !has(w.announced, vip3) {
			t.Errorf("%v is not served: %v, announced %v", vip3, w.addrs, w.announced)
		}
		r.touch(func(v *plan.View) plan.Touched { // what this process made follows the plan
			delete(v.Services, pools.ServiceKey{Namespace: "default", Name: "lost"})
			delete(v.VIPs, vip3.String())
			return plan.Touched{All: true}
		})
		time.Sleep(5 * time.Second)
		look()
		if has(w.announced, vip3) {
			t.Errorf("%v is announced yet", vip3)
		}
		if w.bgp.begun {
			t.Error("BGP is told what a snapshot says")
		}

		changes := w.changes
		r.touch(func(v *plan.View) plan.Touched {
			v.Stale = false
			service(v, "web", vip1, []uint16{80}, 3, "a")
			return plan.Touched{Services: map[pools.ServiceKey]struct{}{{Namespace: "default", Name: "web"}: {}}}
		})
		r.wantPlanned(t)
		if w.changes == changes || has(w.addrs, vip2) || has(w.addrs, vip3) {
			t.Errorf("what is left over is there yet: %v", w.addrs)
		}
		if log := r.log.String(); strings.Count(log, "delete real") > 0 {
			t.Errorf("an endpoint that the snapshot lacked went for a moment:\n%s", log)
		}
	})
}

// When the lists say what the snapshot says nothing happens.
func TestSnapshotThatIsRight(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 3, "a")
		v.Stale = true
		r := start(t, w, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		changes, tells := w.changes, w.tells
		r.touch(func(v *plan.View) plan.Touched { v.Stale = false; return plan.Touched{} })
		time.Sleep(5 * time.Second)
		r.wantPlanned(t)
		if w.changes != changes || w.tells != tells {
			t.Errorf("%d changes, the announcer was told %d times:\n%s", w.changes-changes, w.tells-tells, r.log)
		}
	})
}
