package speaker

import (
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// A process that plans from a snapshot adds what is missing. It removes no state of an earlier process, which may have
// had newer data, but does remove what it made itself. Once every list is complete the residual state is removed.
func TestSnapshotRemovesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		vip3 := netip.MustParseAddr("203.0.113.6")
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 3, "a")
		service(v, "later", vip2, []uint16{80, 443}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		r.stop()
		f.restart()
		before := r.table(t)
		filter := maps.Clone(f.filter)

		old := baseView()
		old.FromSnapshot = true
		service(old, "web", vip1, []uint16{80}, 2, "a")
		service(old, "lost", vip3, []uint16{80}, 1, "a")
		r = start(t, f, &cluster{view: old, synced: true})
		defer func() { r.stop() }()
		observe := func() {
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
			if !has(f.addrs, vip1) || !has(f.addrs, vip2) {
				t.Errorf("local addresses are %v", f.addrs)
			}
			for e := range filter {
				if !has(f.filter, e) {
					t.Errorf("the filter lacks %v", e)
				}
			}
			if _, announced := f.announced[vip2]; announced || !has(f.announced, vip1) {
				t.Errorf("announced is %v", f.announced)
			}
		}
		observe()
		if !has(f.addrs, vip3) || !has(f.announced, vip3) {
			t.Errorf("%v is not served: %v, announced %v", vip3, f.addrs, f.announced)
		}
		r.touch(func(v *view.View) view.Touched { // entries of this process follow the plan
			delete(v.Services, pools.ServiceKey{Namespace: "default", Name: "lost"})
			delete(v.VIPs, vip3.String())
			return view.Touched{All: true}
		})
		time.Sleep(5 * time.Second)
		observe()
		if has(f.announced, vip3) {
			t.Errorf("%v is announced yet", vip3)
		}
		if f.bgp.begun {
			t.Error("BGP gets routes from a snapshot")
		}

		changes := f.changes
		r.touch(func(v *view.View) view.Touched {
			v.FromSnapshot = false
			service(v, "web", vip1, []uint16{80}, 3, "a")
			return view.Touched{Services: map[pools.ServiceKey]struct{}{{Namespace: "default", Name: "web"}: {}}}
		})
		r.wantPlanned(t)
		if f.changes == changes || has(f.addrs, vip2) || has(f.addrs, vip3) {
			t.Errorf("what is left over is there yet: %v", f.addrs)
		}
		if log := r.log.String(); strings.Count(log, "delete real") > 0 {
			t.Errorf("an endpoint that the snapshot lacked went for a moment:\n%s", log)
		}
	})
}

// If the lists match the snapshot, nothing changes.
func TestSnapshotThatIsRight(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 3, "a")
		v.FromSnapshot = true
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		changes, publishes := f.changes, f.announcements
		r.touch(func(v *view.View) view.Touched { v.FromSnapshot = false; return view.Touched{} })
		time.Sleep(5 * time.Second)
		r.wantPlanned(t)
		if f.changes != changes || f.announcements != publishes {
			t.Errorf("%d changes, %d announcements:\n%s", f.changes-changes, f.announcements-publishes, r.log)
		}
	})
}

// lockNear marks the password of peer near as not yet known, or sets it.
func lockNear(v *view.View, password view.Secret) view.Touched {
	p := v.BGPPeers["near"]
	p.Password, p.Wrong, p.Message = password, "", ""
	if password == "" {
		p.Wrong, p.Message = routes.PasswordUnknown, "the API server has not answered yet"
	}
	v.BGPPeers["near"] = p
	return view.Touched{BGPPeers: map[string]struct{}{"near": {}}}
}

// peers returns the peers that ironlb-bgpd has received.
func (r *run) peers() map[string]routes.Peer {
	r.bgp.mu.Lock()
	defer r.bgp.mu.Unlock()
	return maps.Clone(r.bgp.published.Peers)
}

// If ironlb-bgpd was restarted as well, BGP begins from the snapshot, with the peers that have no password. The others
// wait, and that is reported.
func TestSnapshotBeginsBGP(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.bgp.away = true
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 3, "a")
		v.FromSnapshot = true
		lockNear(v, "")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.bgp.begun {
			t.Fatal("BGP gets routes from a snapshot before it is known whether the daemon has others")
		}
		f.bgp.mu.Lock()
		f.bgp.away = false
		f.bgp.mu.Unlock()
		r.trigger.Now()
		r.wantPlanned(t)
		if peers := r.peers(); len(peers) != 1 || !has(peers, "far") || len(r.prefixes("far")) != 1 || len(r.prefixes("near")) != 0 {
			t.Errorf("peers %v, routes %v", peers, r.bgp.published.Routes)
		}
		if got := f.nodeStatus.Sessions["near"]; got.State != routes.SessionIdle || got.Reason != routes.PasswordUnknown {
			t.Errorf("session of the peer that waits: %+v", got)
		}
		if n := strings.Count(r.log.String(), `msg="BGP session not established" peer=near reason=PasswordUnknown`); n != 1 {
			t.Errorf("%d lines about the peer that waits:\n%s", n, r.log)
		}
		far, reported := r.peers()["far"], len(f.bgp.changes)
		r.touch(func(v *view.View) view.Touched { v.FromSnapshot = false; return lockNear(v, "s3cret") })
		r.wantPlanned(t)
		if peers := r.peers(); peers["near"].Password != "s3cret" || peers["far"] != far || len(r.prefixes("near")) != 1 {
			t.Errorf("peers %v, routes %v", peers, r.bgp.published.Routes)
		}
		for _, c := range r.changesSince(reported) {
			if c.Full || has(c.Peers, "far") {
				t.Errorf("the established session was touched: %+v", c)
			}
		}
	})
}

// A running ironlb-bgpd keeps its peers, including those with a password, until the API server answers or ironlb-bgpd
// is restarted.
func TestSnapshotLeavesBGP(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 3, "a")
		lockNear(v, "s3cret")
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		r.stop()
		f.restart()
		reported, before := len(f.bgp.changes), r.peers()
		lockNear(v, "")
		delete(v.Services, named("web")) // the snapshot is older
		v.FromSnapshot = true
		r = start(t, f, r.cluster)
		defer func() { r.stop() }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.changesSince(reported); len(got) > 0 {
			t.Errorf("ironlb-bgpd gets %+v", got)
		}
		if got := r.peers(); got["near"].Password != "s3cret" || !maps.Equal(got, before) {
			t.Errorf("peers %v, want %v", got, before)
		}
		r.touch(func(v *view.View) view.Touched {
			v.FromSnapshot = false
			service(v, "web", vip1, []uint16{80}, 3, "a")
			lockNear(v, "s3cret")
			return view.Touched{All: true}
		})
		r.wantPlanned(t)
		if got := r.peers(); !maps.Equal(got, before) {
			t.Errorf("peers %v, want %v", got, before)
		}

		r.stop()
		f.restart()
		lockNear(v, "")
		v.FromSnapshot = true
		r = start(t, f, r.cluster)
		time.Sleep(time.Minute)
		f.bgp.mu.Lock()
		f.bgp.published = routes.BGP{}
		f.bgp.mu.Unlock()
		r.trigger.Now()
		r.wantPlanned(t)
		if got := r.peers(); len(got) != 1 || !has(got, "far") {
			t.Errorf("after its restart: got peers %v", got)
		}
	})
}
