package speaker

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// counter is how a data plane counts connections.
type counter struct {
	fails, uncounted bool // uncounted is nftables
	calls            int
	before           func() // called before each count
}

// fixtureDraining is a data plane that counts connections.
type fixtureDraining struct {
	fixtureIPVS
	counter *counter
}

func (i fixtureDraining) Connections(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	i.counter.calls++
	if i.counter.before != nil {
		i.counter.before()
	}
	switch {
	case i.counter.fails:
		return nil, errInjected
	case i.counter.uncounted:
		return nil, nil
	}
	return i.f.kernel.RealStats(keys)
}

// draining is a node with a Service of two endpoints; the first terminates with two connections.
func draining(t *testing.T, c *counter) (r *run, first netip.AddrPort, end func(active, inactive int)) {
	t.Helper()
	f := newFixture(t)
	f.counter, f.level = c, slog.LevelDebug
	v := baseView()
	service(v, "web", vip1, []uint16{80}, 2, "a")
	o := options
	o.DrainLimit = 15 * time.Minute
	r = startWith(t, f, &cluster{view: v, synced: true}, o)
	first = netip.MustParseAddrPort("192.0.2.10:8080")
	end = func(active, inactive int) {
		f.kernel.SetStats(webKey, first, ipvs.RealStats{Active: active, Inactive: inactive})
	}
	synctest.Wait()
	end(1, 1)
	r.touchService("web", func(_ *view.Service, slice *view.Slice) { terminate(&slice.Endpoints[0]) })
	synctest.Wait()
	return r, first, end
}

func terminate(e *view.Endpoint) { e.Ready, e.Terminating = false, true }

// wantFirst checks the weight of the first endpoint, -1 if it is no real server.
func (r *run) wantFirst(t *testing.T, when string, weight int) {
	t.Helper()
	synctest.Wait()
	got := -1
	if rs, is := r.table(t)[webKey].RealServers[netip.MustParseAddrPort("192.0.2.10:8080")]; is {
		got = int(rs.Weight)
	}
	if got != weight {
		t.Errorf("%s: weight %d, want %d", when, got, weight)
	}
	if h := r.speaker.Health(); !h.Ready {
		t.Errorf("%s: not ready: %s", when, h.Reason)
	}
}

// wantTracked checks whether the last cleanup of conntrack spared established connections to an endpoint of weight 0.
func (r *run) wantTracked(t *testing.T, when string, at netip.AddrPort, want bool) {
	t.Helper()
	r.fixture.mu.Lock()
	defer r.fixture.mu.Unlock()
	if real, is := r.tracked[webKey].RealServers[at]; is != want || real.Weight > 0 {
		t.Errorf("%s: conntrack received %v with %v; want it listed: %t", when, at, real, want)
	}
}

// A draining endpoint ends with its last connection, and returns like a new one. Established connections in conntrack,
// which IPVS did not count, stay as long as the plan has the endpoint.
func TestDrainsUntilNoConnectionIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, first, end := draining(t, new(counter))
		defer r.stop()
		time.Sleep(5 * time.Minute)
		r.wantFirst(t, "with connections", 0)
		r.wantCleaned(t, "drains", webKey) // of the new address
		end(0, 1)
		time.Sleep(time.Minute)
		r.wantFirst(t, "one closes", 0)
		end(0, 0)
		time.Sleep(3 * time.Second)
		r.wantFirst(t, "no connection", -1)
		r.wantCleaned(t, "ended", webKey)
		r.wantTracked(t, "ended", first, true)
		if !strings.Contains(r.log.String(), "delete real server") {
			t.Errorf("not logged: %s", r.log)
		}
		read := r.kernel.StatsRead()
		time.Sleep(time.Minute)
		r.wantFirst(t, "later", -1)
		if again := r.kernel.StatsRead(); again != read {
			t.Errorf("connections are counted %d times although nothing drains", again-read)
		}
		r.kernel.Flush()
		r.cluster.trigger.Resync()
		time.Sleep(3 * time.Second)
		r.wantFirst(t, "restored after a flush", -1)
		r.touchService("web", func(_ *view.Service, slice *view.Slice) {
			slice.Endpoints[0].Ready, slice.Endpoints[0].Terminating = true, false
		})
		r.wantFirst(t, "ready again", 1)
		end(3, 0)
		r.touchService("web", func(_ *view.Service, slice *view.Slice) { terminate(&slice.Endpoints[0]) })
		time.Sleep(time.Minute)
		r.wantFirst(t, "drains again", 0)
		end(0, 0)
		time.Sleep(3 * time.Second)
		r.wantFirst(t, "ended again", -1)
		r.wantCleaned(t, "ended again", webKey)
		r.touchService("web", func(_ *view.Service, slice *view.Slice) { slice.Endpoints = slice.Endpoints[1:] })
		r.wantCleaned(t, "left the slice", webKey)
		r.wantTracked(t, "left the slice", first, false)
	})
}

// The limit ends an endpoint with connections. While they cannot be counted, only the limit does; nftables, which
// counts none, is asked once.
func TestDrainLimit(t *testing.T) {
	for _, c := range []*counter{{}, {fails: true}, {uncounted: true}} {
		inBubble(t, func(t *testing.T) {
			r, _, end := draining(t, c)
			defer r.stop()
			if c.fails || c.uncounted {
				end(0, 0)
			}
			time.Sleep(14 * time.Minute)
			r.wantFirst(t, "before the limit", 0)
			time.Sleep(2 * time.Minute)
			r.wantFirst(t, "after the limit", -1)
			if c.uncounted && c.calls > 1 {
				t.Errorf("counted %d times, want once", c.calls)
			}
			logged := strings.Count(r.log.String(), "failed to count the connections")
			if failures := testutil.ToFloat64(r.speaker.cfg.Metrics.drains); c.fails != (failures > 80) || c.fails != (logged == 1) {
				t.Errorf("%+v: %v failures, logged %d times", c, failures, logged)
			}
		})
	}
}

// Connections are counted of virtual servers that drain, and only some time after the weight became 0: a packet under
// way may still start one.
func TestDrainCountsOnlyWhatDrains(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, _, _ := draining(t, new(counter))
		defer r.stop()
		if n := r.kernel.StatsRead(); n != 0 {
			t.Errorf("counted %d times at once", n)
		}
		time.Sleep(time.Minute)
		if n := r.kernel.StatsRead(); n < 30 || n > 61 {
			t.Errorf("counted %d times in a minute, want once a second of one virtual server", n)
		}
	})
}

// A drain ends although its virtual server changes more often than connections are counted.
func TestDrainEndsDuringChanges(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, _, end := draining(t, new(counter))
		defer r.stop()
		end(0, 0)
		for i := range 10 {
			r.touchService("web", func(_ *view.Service, slice *view.Slice) {
				slice.Endpoints = slice.Endpoints[:2:2]
				if i%2 == 0 {
					slice.Endpoints = append(slice.Endpoints, view.Endpoint{Addr: netip.MustParseAddr("192.0.2.99"), Node: "a", Ready: true, Serving: true})
				}
			})
			time.Sleep(400 * time.Millisecond)
		}
		r.wantFirst(t, "changes", -1)
	})
}

// An ended endpoint that cannot be deleted is retried with backoff, not with each count.
func TestDrainedEndpointCannotBeDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, _, end := draining(t, new(counter))
		defer r.stop()
		attempts, may := 0, r.kernel.Fail
		r.fixture.mu.Lock()
		r.kernel.Fail = func(op ipvs.Op) error {
			if op.Action == ipvs.DeleteReal {
				attempts++
				return errInjected
			}
			return may(op)
		}
		r.fixture.mu.Unlock()
		end(0, 0)
		time.Sleep(time.Minute)
		r.fixture.mu.Lock()
		if attempts < 3 || attempts > 15 {
			t.Errorf("%d attempts in a minute, want a backoff to one in 10 s", attempts)
		}
		r.kernel.Fail = may
		r.fixture.mu.Unlock()
		time.Sleep(retryMax)
		r.wantFirst(t, "deletable", -1)
	})
}

// Counting follows the announcements of the same reconcile.
func TestCountFollowsAnnouncements(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := new(counter)
		r, _, _ := draining(t, c)
		defer r.stop()
		vip := netip.MustParseAddr("203.0.113.77")
		announced := []bool{}
		r.fixture.mu.Lock()
		c.before = func() { announced = append(announced, has(r.announced, vip)) }
		r.fixture.mu.Unlock()
		time.Sleep(999 * time.Millisecond)
		r.cluster.mu.Lock() // without a trigger: the reconcile that counts is the first to observe it
		r.pending = append(r.pending, func(v *view.View) view.Touched {
			service(v, "new", vip, []uint16{80}, 1, "a")
			return view.Touched{All: true}
		})
		r.cluster.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		r.fixture.mu.Lock()
		defer r.fixture.mu.Unlock()
		if len(announced) != 1 || !announced[0] {
			t.Errorf("%v announced at each count, want one count after the announcement", announced)
		}
	})
}

// If the last endpoint ended, its address stays: clients are refused, as with an endpoint of weight 0.
func TestDrainedServiceKeepsItsAddress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, _, end := draining(t, new(counter))
		defer r.stop()
		end(0, 0)
		r.touchService("web", func(_ *view.Service, slice *view.Slice) {
			slice.Endpoints = slice.Endpoints[:1]
			slice.Endpoints[0].Serving = false
		})
		time.Sleep(5 * time.Second)
		r.wantFirst(t, "ended", -1)
		r.fixture.mu.Lock()
		defer r.fixture.mu.Unlock()
		if _, local := r.addrs[vip1]; !local || len(r.announced) != 1 {
			t.Errorf("local addresses %v, announced %v; want %v", r.addrs, r.announced, vip1)
		}
	})
}
