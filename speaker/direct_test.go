package speaker

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

var (
	web       = pools.ServiceKey{Namespace: "default", Name: "web"}
	directKey = ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}
)

// directView has two nodes, and a Service with an endpoint on each that is forwarded directly.
func directView() *view.View {
	v := baseView()
	v.Nodes["a"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}}
	v.Nodes["b"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.2")}}
	service(v, "web", vip1, []uint16{80}, 2, "a")
	v.Slices[web]["s"].Endpoints[1].Node = "b"
	forward(v, view.Direct)
	return v
}

// forward changes how Service web is forwarded.
func forward(v *view.View, how view.Forwarding) {
	svc := v.Services[web]
	svc.Forwarding = how
	v.Services[web] = svc
}

// directedNow reports whether Service web is directed.
func (r *run) directedNow() bool {
	r.fixture.mu.Lock()
	defer r.fixture.mu.Unlock()
	return has(r.tunnels.have.Virtuals, directKey)
}

// The fixture checks the order: a virtual server is directed once it has only this node's endpoints, and no longer
// before it gets others or is deleted; its address follows, and precedes on removal.
func TestDirectKeepsTheOrder(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		r := start(t, f, &cluster{view: directView(), synced: true})
		defer r.stop()
		r.wantPlanned(t)
		if !r.directedNow() || !has(r.announced, vip1) {
			t.Errorf("directed %v, announced %v", r.directedNow(), r.announced)
		}
		for _, step := range []func(*view.View){
			func(v *view.View) { v.Slices[web]["s"].Endpoints[0].Node = "b" },
			func(v *view.View) { v.Slices[web]["s"].Endpoints[0].Node = "a" },
			func(v *view.View) { forward(v, view.ToPod) },
			func(v *view.View) { forward(v, view.Direct) },
			func(v *view.View) {
				v.Nodes["c"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.3")}}
			},
			func(v *view.View) { delete(v.Nodes, "b") },
			func(v *view.View) { delete(v.Services, web); delete(v.VIPs, vip1.String()) },
		} {
			r.set(step)
			time.Sleep(time.Second)
			r.wantPlanned(t)
		}
		if len(r.tunnels.have.Virtuals) > 0 {
			t.Errorf("still directed: %v", r.tunnels.have.Virtuals)
		}
	})
}

// The same if any change fails, with or without a restart.
func TestDirectConverges(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for failAt := 1; failAt < 24; failAt++ {
			t.Run(fmt.Sprint("restart ", restart, " at ", failAt), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					f := newFixture(t)
					f.failAt = failAt
					r := start(t, f, &cluster{view: directView(), synced: true})
					time.Sleep(time.Second)
					r.set(func(v *view.View) { forward(v, view.ToPod) })
					time.Sleep(time.Second)
					r.set(func(v *view.View) { forward(v, view.Direct) })
					time.Sleep(time.Second)
					synctest.Wait()
					if restart {
						v := r.view
						r.stop()
						f.restart()
						r = start(t, f, &cluster{view: v, synced: true})
						synctest.Wait()
					}
					defer r.stop()
					f.mu.Lock()
					f.failAt = 0
					f.mu.Unlock()
					time.Sleep(2 * retryMax)
					r.wantPlanned(t)
				})
			})
		}
	}
}

// What another program removed is restored within two seconds.
func TestDirectIsRestored(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		r := start(t, f, &cluster{view: directView(), synced: true})
		defer r.stop()
		r.wantPlanned(t)
		f.mu.Lock()
		f.tunnels.have = ipvs.Direct{}
		f.mu.Unlock()
		time.Sleep(2 * time.Second)
		r.wantPlanned(t)
	})
}

// What an earlier process directed is removed, although this one directs nothing.
func TestDirectIsRemovedAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		r := start(t, f, &cluster{view: directView(), synced: true})
		r.wantPlanned(t)
		v := r.view
		r.stop()
		f.restart()
		forward(v, view.ToPod)
		r = start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
	})
}

// A node on which tunnels prove impossible forwards to endpoints, and reports that to the others. It probes with its
// nodes, every minute or soon after a change of the network, and then directs again.
func TestDirectProvesImpossible(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*view.View)
		after  time.Duration
	}{
		"a port becomes free":      {func(*view.View) {}, time.Minute},
		"a node's address changes": {func(v *view.View) { v.Nodes["c"] = view.Node{Addresses: []netip.Addr{addrC}} }, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFixture(t)
				impossible := fmt.Errorf("%w: no vxlan", ipvs.ErrNoTunnel)
				f.tunnels.failApply = impossible
				r := start(t, f, &cluster{view: directView(), synced: true})
				defer r.stop()
				time.Sleep(time.Second)
				f.mu.Lock()
				f.tunnels.failProbe = impossible
				f.mu.Unlock()
				time.Sleep(3 * time.Minute)
				r.wantPlanned(t)
				if got := r.speaker.desired.Fallbacks[web]; got.Reason != view.TunnelUnavailable || r.directedNow() || r.detector.state().Direct || !has(r.announced, vip1) {
					t.Errorf("fallback %+v, directed %v, published %+v, announced %v", got, r.directedNow(), r.detector.state(), r.announced)
				}
				f.mu.Lock()
				f.tunnels.failApply, f.tunnels.failProbe = nil, nil
				f.mu.Unlock()
				r.set(c.change)
				time.Sleep(c.after + time.Second)
				r.wantPlanned(t)
				if !r.directedNow() || !r.detector.state().Direct || f.tunnels.probed.Self != r.view.Nodes["a"].Addresses[0] {
					t.Errorf("directed %v, published %+v, probed %+v", r.directedNow(), r.detector.state(), f.tunnels.probed)
				}
			})
		})
	}
}

// A node whose probes succeed although Apply fails reports to the others less and less often that it can.
func TestDirectDoesNotFlap(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.tunnels.failApply = fmt.Errorf("%w: no vxlan", ipvs.ErrNoTunnel)
		r := start(t, f, &cluster{view: directView(), synced: true})
		defer r.stop()
		time.Sleep(2 * time.Hour)
		r.wantPlanned(t)
		able := 0
		r.detector.set(func(d *fixtureDetector) {
			for i, s := range d.states {
				if s.Direct && (i == 0 || !d.states[i-1].Direct) {
					able++
				}
			}
		})
		if able != 8 { // at 0, 1, 3, 7, 15, 31, 63 and 95 minutes
			t.Errorf("reported %d times", able)
		}
	})
}

// A node whose tunnels have no IPv6 forwards only IPv6 addresses to endpoints, and reports that to the others.
func TestDirectIPv4Only(t *testing.T) {
	for _, found := range []string{"by a probe", "by Apply"} {
		t.Run(found, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFixture(t)
				v, vip6 := directView(), netip.MustParseAddr("2001:db8::64")
				noIPv6 := fmt.Errorf("%w: disabled", ipvs.ErrNoTunnelIPv6)
				if found == "by a probe" {
					f.tunnels.failIPv6 = noIPv6
				}
				r := start(t, f, &cluster{view: v, synced: true})
				defer r.stop()
				r.wantPlanned(t)
				f.mu.Lock()
				f.tunnels.failIPv6 = noIPv6
				f.mu.Unlock()
				r.set(func(v *view.View) {
					svc, vip := v.Services[web], v.VIPs[vip1.String()]
					svc.Addresses = append(slices.Clone(svc.Addresses), view.Address{IP: vip6, Pool: "main"})
					vip.Addresses = append(slices.Clone(vip.Addresses), vip6)
					v.Services[web], v.VIPs[vip1.String()] = svc, vip
					slice := v.Slices[web]["s"]
					slice.Endpoints = []view.Endpoint{
						{Addr: netip.MustParseAddr("2001:db8::a"), Node: "a", Ready: true, Serving: true},
						{Addr: netip.MustParseAddr("2001:db8::b"), Node: "b", Ready: true, Serving: true},
					}
					v.Slices[web]["six"] = slice
				})
				time.Sleep(time.Second)
				directed6 := func() bool {
					f.mu.Lock()
					defer f.mu.Unlock()
					return has(f.tunnels.have.Virtuals, ipvs.Key{Addr: vip6, Protocol: ipvs.TCP, Port: 80})
				}
				r.wantPlanned(t)
				if state := r.detector.state(); !r.directedNow() || directed6() || !state.Direct || !state.DirectIPv4Only || !has(r.announced, vip6) {
					t.Errorf("IPv4 directed %v, IPv6 %v, published %+v, announced %v", r.directedNow(), directed6(), state, r.announced)
				}
				want := view.Fallback{Reason: view.NoIPv6Tunnel, Node: "a"}
				if got := r.speaker.desired.Fallbacks[web]; got != want {
					t.Errorf("fallback %+v, want %+v", got, want)
				}
				f.mu.Lock()
				now := f.nodeStatus.Tunnels
				f.tunnels.failIPv6 = nil
				f.mu.Unlock()
				if now.Unable != "" || now.UnableIPv6 != noIPv6.Error() {
					t.Errorf("reported %+v", now)
				}
				time.Sleep(2 * time.Minute)
				r.wantPlanned(t)
				if state := r.detector.state(); !r.directedNow() || !directed6() || state.DirectIPv4Only {
					t.Errorf("IPv4 directed %v, IPv6 %v, published %+v", r.directedNow(), directed6(), state)
				}
			})
		})
	}
}

// A node without tunnels probes for them every minute.
func TestDirectBecomesPossible(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.tunnels.failProbe = fmt.Errorf("%w: no nft", ipvs.ErrNoTunnel)
		r := start(t, f, &cluster{view: directView(), synced: true})
		defer r.stop()
		r.wantPlanned(t)
		if r.directedNow() || r.detector.state().Direct || len(r.detector.states) == 0 {
			t.Errorf("directed %v, published %+v", r.directedNow(), r.detector.states)
		}
		wantTunnels := func(want view.Tunnels, fallbacks float64) {
			t.Helper()
			f.mu.Lock()
			defer f.mu.Unlock()
			m := r.speaker.cfg.Metrics
			if now := f.nodeStatus.Tunnels; now == nil || *now != want || testutil.ToFloat64(m.fallback) != fallbacks ||
				testutil.ToFloat64(m.directed) != float64(want.VirtualServers) {
				t.Errorf("reported %+v, want %+v, and %v fallbacks", now, want, fallbacks)
			}
		}
		wantTunnels(view.Tunnels{Unable: f.tunnels.failProbe.Error(), MTU: 1450}, 1)
		f.mu.Lock()
		f.tunnels.failProbe = nil
		f.mu.Unlock()
		time.Sleep(61 * time.Second)
		r.wantPlanned(t)
		if !r.directedNow() || !r.detector.state().Direct || f.tunnels.probes != 2 {
			t.Errorf("directed %v, published %+v, %d probes", r.directedNow(), r.detector.state(), f.tunnels.probes)
		}
		wantTunnels(view.Tunnels{MTU: 1450, VirtualServers: 1}, 0)
	})
}

// A speaker without claims publishes that its node cannot use tunnels: an earlier process may have published otherwise.
func TestNotDirectIsPublished(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.tunnels.failProbe = ipvs.ErrNoTunnel
		r := start(t, f, &cluster{view: baseView(), synced: true})
		defer r.stop()
		synctest.Wait()
		if len(r.detector.states) == 0 || r.detector.state().Direct {
			t.Errorf("published %+v", r.detector.states)
		}
	})
}

// Another error is only retried: the node is not ready, and its announcement waits.
func TestDirectFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.tunnels.failApply = errors.New("busy")
		r := start(t, f, &cluster{view: directView(), synced: true})
		defer r.stop()
		time.Sleep(time.Second)
		synctest.Wait()
		if h := r.speaker.Health(); h.Ready || has(r.addrs, vip1) || len(r.announced) > 0 || !r.detector.state().Direct {
			t.Errorf("%+v, local %v, announced %v", h, r.addrs, r.announced)
		}
		f.mu.Lock()
		f.tunnels.failApply = nil
		f.mu.Unlock()
		time.Sleep(2 * retryMax)
		r.wantPlanned(t)
	})
}

// Node b cannot receive through tunnels, and then can.
func TestDirectFollowsTheOtherNodes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		r := start(t, f, &cluster{view: directView(), synced: true})
		defer r.stop()
		r.wantPlanned(t)
		for _, notDirect := range []bool{true, false} {
			r.detector.set(func(d *fixtureDetector) { d.notDirect = notDirect })
			time.Sleep(time.Second)
			if r.wantPlanned(t); r.directedNow() == notDirect {
				t.Errorf("directed %v", r.directedNow())
			}
			f.mu.Lock()
			status := f.statuses[vip1.String()]
			f.mu.Unlock()
			logged := strings.Count(r.log.String(), "Service is forwarded to endpoints, not directly")
			if (status.NotDirectReason == view.NodeWithoutTunnel && strings.Contains(status.NotDirect, "default/web")) != notDirect || logged != 1 {
				t.Errorf("reported %+v, logged %d times", status, logged)
			}
		}
	})
}

// What a VirtualIP does not report because only BGP announces the address is in the status of the node.
func TestNotDirectByBGP(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.tunnels.failProbe = fmt.Errorf("%w: no nft", ipvs.ErrNoTunnel)
		v := directView()
		service(v, "other", vip2, []uint16{80}, 1, "a")
		other := pools.ServiceKey{Namespace: "default", Name: "other"}
		svc := v.Services[other]
		svc.Forwarding = view.Direct
		v.Services[other] = svc
		delete(v.VIPs, vip2.String())
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		reported := func() map[view.Reason]report.NotDirect {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.nodeStatus.NotDirect
		}
		if now := reported()[view.TunnelUnavailable]; !slices.Equal(now.Addresses, []netip.Addr{vip2}) || now.Message == "" {
			t.Errorf("reported %+v, want %v", reported(), vip2)
		}
		f.mu.Lock()
		f.tunnels.failProbe = nil
		f.mu.Unlock()
		time.Sleep(61 * time.Second)
		r.wantPlanned(t)
		if now := reported(); len(now) > 0 {
			t.Errorf("reported %+v, and it is directed", now)
		}
	})
}

func TestCleanupRemovesDirected(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		r := start(t, f, &cluster{view: directView(), synced: true})
		r.wantPlanned(t)
		r.stop()
		f.harmed = true
		if err := Cleanup(t.Context(), f.node(), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if len(f.tunnels.have.Virtuals)+len(f.addrs) > 0 {
			t.Errorf("left %v, %v", f.tunnels.have, f.addrs)
		}
	})
}

// A node that joins gets no slots until its speaker is received, and prevents direct forwarding only after 30 s, or if
// there is no other endpoint.
func TestDirectAwaitsANodeThatJoins(t *testing.T) {
	v, now := directView(), time.Now()
	v.Members.Peers = map[string]view.Member{"b": {Alive: true, Direct: true}}
	p := forwarding.New("a", false, forwarding.Options{})
	plan := func(touched view.Touched) (view.Fallback, map[string]bool) {
		f, _ := p.Plan(v, touched, now)
		nodes := map[string]bool{}
		if d, directed := f.Direct.Virtuals[directKey]; directed {
			for _, index := range d.Slots {
				nodes[map[netip.Addr]string{v.Nodes["a"].Addresses[0]: "a", v.Nodes["b"].Addresses[0]: "b", addrC: "c"}[f.Direct.Nodes[index]]] = true
			}
		}
		return f.Fallbacks[web], nodes
	}
	want := func(when string, touched view.Touched, fallback view.Fallback, nodes ...string) {
		t.Helper()
		if f, on := plan(touched); f != fallback || !slices.Equal(slices.Sorted(maps.Keys(on)), nodes) {
			t.Errorf("%s: fallback %+v, slots of %v, want %+v, %v", when, f, on, fallback, nodes)
		}
	}
	services := view.Touched{Services: map[pools.ServiceKey]struct{}{web: {}}}
	withoutC := view.Fallback{Reason: view.NodeWithoutTunnel, Node: "c"}
	want("at first", view.Touched{All: true}, view.Fallback{}, "a", "b")

	v.Nodes["c"] = view.Node{Addresses: []netip.Addr{addrC}}
	v.Slices[web]["s"].Endpoints[0].Node = "c"
	want("a node joins", view.Touched{Nodes: map[string]struct{}{"c": {}}, Services: services.Services}, view.Fallback{}, "b")
	now = p.Wake()
	want("its speaker is not received in time", view.Touched{}, withoutC)

	member := view.Touched{Members: map[string]struct{}{"c": {}}}
	v.Members.Peers["c"] = view.Member{Alive: true, Direct: true}
	want("its speaker is received", member, view.Fallback{}, "b", "c")
	v.Members.Peers["c"] = view.Member{Alive: true}
	want("it cannot", member, withoutC)

	delete(v.Members.Peers, "c")
	p = forwarding.New("a", false, forwarding.Options{})
	want("this node starts, and others are not received", view.Touched{All: true}, view.Fallback{}, "b")
	v.Slices[web]["s"].Endpoints[1].Node = "c"
	want("there is no other endpoint", services, withoutC)
	v.Members.Observer = true
	p = forwarding.New("a", false, forwarding.Options{})
	want("this node observes the others", view.Touched{All: true}, view.Fallback{}, "c")
	v.Members.Observer = false
	want("it has observed them, and the node's speaker is away", member, view.Fallback{}, "c")
}

var addrC = netip.MustParseAddr("198.51.100.3")

// A speaker that starts with endpoints on its node has no connections of their slots: it sends unknown segments to the
// nodes that had these slots while it was away.
func TestDirectStartsWithEndpoints(t *testing.T) {
	v := directView()
	v.Members.Peers, v.Members.Observer = map[string]view.Member{"b": {Alive: true, Direct: true}}, true
	for _, only := range []bool{false, true} {
		if only { // on this node
			v.Slices[web]["s"].Endpoints[1].Node = "a"
		}
		f, _ := forwarding.New("a", false, forwarding.Options{}).Plan(v, view.Touched{All: true}, time.Now())
		d := f.Direct.Virtuals[directKey]
		if only {
			if *d.Before != *d.Slots {
				t.Error("without another endpoint: another node had slots before")
			}
			continue
		}
		for slot, node := range d.Before {
			if f.Direct.Nodes[node] != v.Nodes["b"].Addresses[0] {
				t.Fatalf("slot %d: before %v, want node b", slot, f.Direct.Nodes[node])
			}
		}
	}
}

// A speaker that stops leaves the tunnels of its node, and the others continue to use them.
func TestDirectStaysWhenASpeakerStops(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		r := start(t, f, &cluster{view: directView(), synced: true})
		defer r.stop()
		r.wantPlanned(t)
		r.speaker.stopAnnouncing()
		if last := r.detector.state(); !last.Leaving || !last.Direct {
			t.Errorf("published last %+v, want that it leaves and can receive through tunnels", last)
		}
	})
}
