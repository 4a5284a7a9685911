package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// held returns a speaker that owns vip1. Node b is its successor.
func held(t *testing.T) *run {
	v := baseView()
	service(v, "web", vip1, []uint16{80}, 2, "a", "b")
	r := start(t, newFixture(t), &cluster{view: v, synced: true})
	r.wantPlanned(t)
	if len(r.announced) != 1 {
		t.Fatalf("announced %v", r.announced)
	}
	return r
}

func (r *run) claim(addr netip.Addr) view.Claim { return r.detector.state().Claims[addr.String()] }

// The detector receives the segments and the nodes of the cluster.
func TestConfiguresTheDetector(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		defer r.stop()
		r.touch(func(v *view.View) view.Touched {
			v.Nodes["c"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.3")}}
			return view.Touched{Nodes: map[string]struct{}{"c": {}}}
		})
		synctest.Wait()
		r.detector.mu.Lock()
		defer r.detector.mu.Unlock()
		if !slices.Equal(r.detector.segments, []string{"eth0"}) || len(r.detector.peers) != 3 || len(r.detector.peers["c"]) != 1 {
			t.Errorf("segments %v, peers %v", r.detector.segments, r.detector.peers)
		}
	})
}

// After a stall a node first stops answering, claims nothing, writes no status, and accepts the claims of the others.
func TestStalls(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		defer r.stop()
		r.fixture.mu.Lock()
		changes := r.changes
		r.fixture.mu.Unlock()
		r.detector.set(func(d *fixtureDetector) { d.observer = true })
		synctest.Wait()
		r.fixture.mu.Lock()
		if len(r.announced)+len(r.statuses) > 0 || r.changes != changes {
			t.Errorf("announced %v, statuses %v, %d changes", r.announced, r.statuses, r.changes-changes)
		}
		r.fixture.mu.Unlock()
		if state := r.detector.state(); len(state.Claims) > 0 || !strings.Contains(r.log.String(), "msg=withdraw address=203.0.113.4 vip=203.0.113.4 reason=Observer") {
			t.Errorf("published %+v, log:\n%s", state, r.log)
		}
		r.detector.set(func(d *fixtureDetector) {
			d.observer, d.override = false, map[string]view.Claim{vip1.String(): {State: view.Held, Rank: 1}}
		})
		synctest.Wait()
		if c := r.claim(vip1); c != (view.Claim{}) || len(r.announced) > 0 {
			t.Errorf("got claim %+v, announced %v", c, r.announced)
		}
	})
}

// The state that ends a fence is published even if it is unchanged.
func TestRepublishesAfterAFence(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		synctest.Wait()
		logged := len(r.detector.states)
		for range 2 { // the second one while it observes already
			r.detector.set(func(d *fixtureDetector) { d.observer, d.fences = true, d.fences+1 })
			synctest.Wait()
		}
		if n := len(r.detector.states) - logged; n != 2 {
			t.Errorf("%d publications, want one after each fence", n)
		}
	})
}

// A stopping speaker names its successor, answers until the successor does, and then ends. The node continues to
// forward.
func TestLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		began := time.Now()
		r.speaker.Leave()
		synctest.Wait()
		if c, state := r.claim(vip1), r.detector.state(); c.State != view.HandingOver || c.Successor != "b" || !state.Leaving || len(r.announced) != 1 {
			t.Errorf("got claim %+v, %+v, announced %v", c, state, r.announced)
		}
		time.Sleep(300 * time.Millisecond)
		r.detector.set(func(d *fixtureDetector) {
			d.override = map[string]view.Claim{vip1.String(): {State: view.Held, Rank: 1}}
		})
		if err := <-r.done; err != nil || time.Since(began) > 400*time.Millisecond {
			t.Errorf("ended with %v after %v", err, time.Since(began))
		}
		if len(r.announced) > 0 || !has(r.addrs, vip1) || len(r.table(t)) != 1 {
			t.Errorf("announced %v, local %v", r.announced, r.addrs)
		}
		if state := r.detector.state(); len(state.Claims) > 0 || !state.Leaving {
			t.Errorf("published last: %+v", state)
		}
		if !strings.Contains(r.log.String(), "reason=HandedOver") {
			t.Errorf("log:\n%s", r.log)
		}
	})
}

// A speaker that is asked to leave in the middle of a reconcile that publishes other claims still hands over. A state
// planned before Leave is not published as that of a leaving speaker.
func TestLeavesInTheMidstOfARound(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		r.detector.set(func(d *fixtureDetector) { d.onPeers = r.speaker.Leave })
		r.touch(func(v *view.View) view.Touched {
			vip := v.VIPs[vip1.String()]
			vip.Generation++ // so a claim is published
			v.VIPs[vip1.String()] = vip
			return view.Touched{VIPs: map[string]struct{}{vip1.String(): {}}, Nodes: map[string]struct{}{"b": {}}}
		})
		synctest.Wait()
		if c, state := r.claim(vip1), r.detector.state(); c.State != view.HandingOver || !state.Leaving || len(r.announced) != 1 {
			t.Errorf("got claim %+v, %+v, announced %v", c, state, r.announced)
		}
		r.detector.set(func(d *fixtureDetector) {
			d.override = map[string]view.Claim{vip1.String(): {State: view.Held, Rank: 1}}
		})
		if err := <-r.done; err != nil || !strings.Contains(r.log.String(), "reason=HandedOver") {
			t.Errorf("ended with %v, log:\n%s", err, r.log)
		}
	})
}

// A node that has just started is waited for: it takes over once it has received the claims of the others. In an
// upgrade of two nodes it is the only successor.
func TestLeavesToOneThatBegins(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		r.detector.set(func(d *fixtureDetector) { d.begins = true })
		r.speaker.Leave()
		time.Sleep(400 * time.Millisecond)
		if len(r.announced) != 1 {
			t.Fatal("it has ended")
		}
		r.detector.set(func(d *fixtureDetector) { d.begins = false })
		synctest.Wait()
		if c := r.claim(vip1); c.State != view.HandingOver || c.Successor != "b" {
			t.Errorf("got claim %+v", c)
		}
		r.detector.set(func(d *fixtureDetector) {
			d.override = map[string]view.Claim{vip1.String(): {State: view.Held, Rank: 1}}
		})
		if err := <-r.done; err != nil || !strings.Contains(r.log.String(), "reason=HandedOver") {
			t.Errorf("ended with %v, log:\n%s", err, r.log)
		}
	})
}

// The node status contains only interfaces that matter to addresses: a new Pod costs no write.
func TestNodeStatusHasNoPods(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		defer r.stop()
		r.touch(func(v *view.View) view.Touched {
			v.Links["veth1"] = view.Link{Name: "veth1"}
			v.Links["eth1"] = view.Link{Name: "eth1", Subnets: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")}}
			return view.Touched{Links: map[string]struct{}{"veth1": {}, "eth1": {}}}
		})
		synctest.Wait()
		r.fixture.mu.Lock()
		defer r.fixture.mu.Unlock()
		if s := r.nodeStatus; len(s.Links) != 2 || !has(s.Links, "eth0") || !has(s.Links, "eth1") || s.VirtualIPs != 1 || !s.Healthy {
			t.Errorf("%+v", s)
		}
	})
}

// A new hardware address of a reachable node is passed to the announcer, which would otherwise take it for a foreign
// host's.
func TestFollowsHardwareAddresses(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		var macs atomic.Pointer[map[[6]byte]string]
		f.hardware = func() map[[6]byte]string { return *macs.Load() }
		macs.Store(&map[[6]byte]string{})
		r := start(t, f, &cluster{view: baseView(), synced: true})
		defer r.stop()
		synctest.Wait()
		for i := range byte(2) {
			want := map[[6]byte]string{{2 * i}: "b"}
			macs.Store(&want)
			time.Sleep(2 * auditEvery)
			synctest.Wait()
			f.mu.Lock()
			if !maps.Equal(f.macs, want) {
				t.Errorf("got %v, want %v", f.macs, want)
			}
			f.mu.Unlock()
		}
	})
}

// A successor that does not answer is waited for at most five seconds. Without a successor there is no wait.
func TestLeavesAlone(t *testing.T) {
	for _, dead := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			r := held(t)
			r.killB(dead)
			synctest.Wait()
			began := time.Now()
			r.speaker.Leave()
			if err := <-r.done; err != nil {
				t.Error(err)
			}
			took := time.Since(began)
			if dead && took > 0 || !dead && took != handoverTimeout {
				t.Errorf("successor dead: %v: ended after %v", dead, took)
			}
			if len(r.announced) > 0 || !strings.Contains(r.log.String(), "reason=Stopping") {
				t.Errorf("announced %v, log:\n%s", r.announced, r.log)
			}
		})
	}
}

// A speaker whose informers never synced ends at once.
func TestLeavesBeforeTheFirstList(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := start(t, newFixture(t), &cluster{view: baseView()})
		time.Sleep(time.Second)
		began := time.Now()
		r.speaker.Leave()
		if err := <-r.done; err != nil || time.Since(began) > auditEvery {
			t.Errorf("ended with %v after %v", err, time.Since(began))
		}
	})
}

// A failover does not wait for the kernel, which is already programmed: the claim and the announcement precede the
// observation of the node.
func TestFailoverIsNotHeldUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "b", "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		if len(r.announced) > 0 {
			t.Fatalf("announced %v", r.announced)
		}
		time.Sleep(5*auditEvery + auditEvery/2)
		f.mu.Lock()
		f.slowAddresses = 10 * time.Second
		f.mu.Unlock()
		r.speaker.cfg.Trigger.resync.Store(true) // as after an interface change, so the same reconcile observes the node
		r.detector.set(func(d *fixtureDetector) { d.deadTime = 300 * time.Millisecond })
		r.killB(true)
		time.Sleep(time.Millisecond) // the observation now holds the fixture's mutex
		if c := r.claim(vip1); c.State != view.Held {
			t.Errorf("got claim %+v while the node is observed", c)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := testutil.CollectAndCount(r.registry, "ironlb_failover_completion_seconds"); n != 1 {
			t.Errorf("%d histograms", n)
		}
		if got := r.metric(t, "ironlb_failover_moves_total", "reason", string(view.OwnerLost)); got != 1 {
			t.Errorf("%v moves for the owner's loss", got)
		}
		// The report follows the observation, so its duration is an upper bound.
		if got := r.statuses[vip1.String()]; got.Moved != view.OwnerLost || got.From != "b" || !got.Announced || got.Took != 10*time.Second+300*time.Millisecond {
			t.Errorf("status %+v", got)
		}
	})
}

// A VirtualIP that cannot be programmed is declined, so that the next node does not wait. Once it is programmed the
// claim is removed.
func TestDeclinesWhatItCannotForward(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		fail := f.kernel.Fail
		f.kernel.Fail = func(ipvs.Op) error { return errInjected }
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "b", "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		synctest.Wait()
		if c := r.claim(vip1); c.State != view.Declined {
			t.Errorf("got claim %+v", c)
		}
		f.mu.Lock()
		f.kernel.Fail = fail
		f.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
		if c := r.claim(vip1); c != (view.Claim{}) {
			t.Errorf("got claim %+v although it can", c)
		}
	})
}

// An unreachable node that overwrites this node's status is logged once, and so is the end of that split brain.
func TestSplit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		defer r.stop()
		r.killB(true)
		message := func(node string) {
			r.touch(func(v *view.View) view.Touched {
				vip := v.VIPs[vip1.String()]
				vip.ReportedOwner = node
				v.VIPs[vip1.String()] = vip
				return view.Touched{VIPs: map[string]struct{}{vip1.String(): {}}}
			})
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		message("a")
		message("b")
		r.touch(func(*view.View) view.Touched { return view.Touched{All: true} })
		synctest.Wait()
		if n := strings.Count(r.log.String(), "split brain: an unreachable node"); n != 1 {
			t.Fatalf("logged %d times:\n%s", n, r.log.String())
		}
		if _, reports := r.statuses[vip1.String()]; reports {
			t.Error("writes the status that is the other one's")
		}
		message("a")
		if n := strings.Count(r.log.String(), "split brain resolved"); n != 1 {
			t.Errorf("its end logged %d times", n)
		}
	})
}

// A second owner with an asymmetric link to this node is reported while the conflict lasts.
func TestAnsweredTwice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		defer r.stop()
		r.touch(func(v *view.View) view.Touched {
			v.Nodes["b"] = view.Node{Addresses: v.Nodes["b"].Addresses, Ready: true}
			return view.Touched{Nodes: map[string]struct{}{"b": {}}}
		})
		twice := func(is bool) report.VIPStatus {
			r.detector.set(func(d *fixtureDetector) {
				d.asymmetric, d.override = is, nil
				if is {
					d.override = map[string]view.Claim{vip1.String(): {State: view.Held, Generation: r.view.VIPs[vip1.String()].Generation, Rank: 1}}
				}
			})
			time.Sleep(time.Minute)
			synctest.Wait()
			return r.statuses[vip1.String()]
		}
		if got := twice(true); !got.Announced || got.ConflictReason != view.AnsweredTwice || !strings.Contains(got.Conflict, "node b ") {
			t.Errorf("status %+v", got)
		}
		if got := twice(false); !got.Announced || got.Conflict != "" || got.ConflictReason != "" {
			t.Errorf("over: status %+v", got)
		}
	})
}

// Another host answers for the address. Before first use the address is declined until the conflict ends; an owned
// address is reported.
func TestAddressConflict(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		defer r.stop()
		conflict := func(addrs ...netip.Addr) {
			r.fixture.mu.Lock()
			r.conflicts = map[netip.Addr]view.Conflict{}
			for _, a := range addrs {
				r.conflicts[a] = view.Conflict{MAC: "02:00:00:00:00:09", Interface: "eth0", Since: time.Unix(1, 0)}
			}
			r.fixture.mu.Unlock()
			r.trigger.Now()
			synctest.Wait()
		}
		conflict(vip1)
		if got := r.statuses[vip1.String()]; !got.Announced || !strings.Contains(got.Conflict, "02:00:00:00:00:09") || !strings.Contains(got.Conflict, "203.0.113.4") {
			t.Errorf("held: status %+v", got)
		}
		conflict()
		if got := r.statuses[vip1.String()]; !got.Announced || got.Conflict != "" {
			t.Errorf("over: status %+v", got)
		}
		r.fixture.mu.Lock()
		r.probing = true // a new address is not announced at once
		r.fixture.mu.Unlock()
		r.set(func(v *view.View) { service(v, "api", vip2, []uint16{80}, 2, "a") })
		synctest.Wait()
		if got := r.statuses[vip2.String()]; got.Announced || got.Reason != view.Probing {
			t.Errorf("probing: status %+v", got)
		}
		conflict(vip2)
		if c, got := r.claim(vip2), r.statuses[vip2.String()]; c.State != view.Declined || got.Reason != view.AddressConflict || got.Conflict == "" || has(r.announced, vip2) {
			t.Errorf("found: claim %+v, status %+v", c, got)
		}
		r.fixture.mu.Lock()
		r.probing = false
		r.fixture.mu.Unlock()
		conflict()
		if c, got := r.claim(vip2), r.statuses[vip2.String()]; c.State != view.Held || !got.Announced {
			t.Errorf("gone: claim %+v, status %+v", c, got)
		}
	})
}
