package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

var (
	route1 = netip.PrefixFrom(vip1, 32)
	all24  = netip.MustParsePrefix("203.0.113.0/24")
)

// The first ready endpoint on this node of a Service with policy Local adds the route at once, and the last one removes
// it. An aggregate stays for the other address. No timer is involved.
func TestRouteFollowsEndpoint(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 1, "a")
		service(v, "api", vip2, []uint16{80}, 1, "a")
		local(v, "web")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		for _, nodes := range [][]string{{"a"}, {}, {"b", "a"}, {"b"}} {
			synctest.Wait()
			n, before := len(r.changesSince(0)), time.Now()
			r.touch(func(v *view.View) view.Touched { return local(v, "web", nodes...) })
			synctest.Wait()
			if !time.Now().Equal(before) {
				t.Fatal("time went by")
			}
			if got, want := has(r.prefixes("near"), route1), slices.Contains(nodes, "a"); got != want {
				t.Errorf("endpoints on %v: route published: %v", nodes, got)
			}
			changes := r.changesSince(n)
			if len(changes) != 1 || len(changes[0].Routes) != 1 || len(changes[0].Peers) > 0 || changes[0].Full {
				t.Errorf("endpoints on %v: changes %+v, want one route", nodes, changes)
			}
			r.wantPlanned(t)
		}
		if !strings.Contains(r.log.String(), `msg="withdraw route" prefix=203.0.113.4/32 peers=near reason=NoLocalEndpoint`) ||
			!strings.Contains(r.log.String(), `msg="announce route" prefix=203.0.113.4/32 peers=near reason=Announced`) {
			t.Errorf("log:\n%s", r.log)
		}
		if n := r.metric(t, "ironlb_bgp_route_changes_total", "action", "withdraw", "reason", string(view.NoLocalEndpoint)); n != 2 {
			t.Errorf("%v withdrawals counted, want 2", n)
		}
	})
}

// Announcements of an earlier process stay until the cluster and the node are observed. Then a single change replaces
// them.
func TestFirstChangeIsFull(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.noModule = true
		f.bgp.published.Apply(routes.Change{Full: true, Peers: map[string]*routes.Peer{"near": {}}, Routes: map[netip.Prefix]routes.Route{route1: {"near": {}}}})
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 2, "b")
		c := &cluster{view: v}
		r := start(t, f, c)
		defer r.stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.changesSince(0); len(got) > 0 {
			t.Fatalf("changes before the cluster is known: %+v", got)
		}
		c.mu.Lock()
		c.synced = true
		c.mu.Unlock()
		c.trigger.Now()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.changesSince(0); len(got) > 0 || !has(r.prefixes("near"), route1) {
			t.Fatalf("changes while the node is not known: %+v", got)
		}
		own := v.Nodes["a"]
		r.touch(func(v *view.View) view.Touched {
			delete(v.Nodes, "a")
			return view.Touched{Nodes: map[string]struct{}{"a": {}}}
		})
		f.mu.Lock()
		f.noModule = false
		f.mu.Unlock()
		time.Sleep(2 * retryMax)
		synctest.Wait()
		if got := r.changesSince(0); len(got) > 0 || !has(r.prefixes("near"), route1) {
			t.Fatalf("changes while there is no Node object of this node: %+v", got)
		}
		r.touch(func(v *view.View) view.Touched {
			v.Nodes["a"] = own
			return view.Touched{Nodes: map[string]struct{}{"a": {}}}
		})
		r.wantPlanned(t)
		if got := r.changesSince(0); len(got) != 1 || !got[0].Full || len(got[0].Routes) != 3 {
			t.Errorf("changes %+v, want one with all three routes", got)
		}
	})
}

// An address that cannot be programmed is not announced; the others are. A lost address is withdrawn, and returns.
func TestRouteNeedsDataPlane(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		f.mu.Lock()
		f.failAt = f.changes + 1
		f.mu.Unlock()
		r.set(func(v *view.View) { service(v, "api", vip2, []uint16{80}, 2, "b") })
		time.Sleep(time.Second)
		synctest.Wait()
		if got := r.prefixes("near"); !maps.Equal(got, map[netip.Prefix]view.Attributes{route1: {}}) {
			t.Errorf("routes %v while the second address cannot be programmed", got)
		}
		f.mu.Lock()
		f.failAt = 0
		f.mu.Unlock()
		time.Sleep(2 * retryMax)
		r.wantPlanned(t)
		if got := r.prefixes("near"); len(got) != 2 {
			t.Errorf("routes %v", got)
		}
		f.mu.Lock()
		f.kernel.Flush()
		f.failAt, f.harmed = f.changes+1, true
		f.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := r.prefixes("far"); len(got) > 0 || len(r.prefixes("near")) > 0 {
			t.Errorf("routes %v while nothing is forwarded", got)
		}
		f.mu.Lock()
		f.failAt, f.harmed = 0, false
		f.mu.Unlock()
		time.Sleep(2 * retryMax)
		r.wantPlanned(t)
		if got := r.prefixes("far"); !has(got, all24) {
			t.Errorf("routes %v", got)
		}
	})
}

// An excluded node first announces GRACEFUL_SHUTDOWN to the peers that already have its routes, and then withdraws
// them. Without the label the previous state returns.
func TestDecommissioningIsGraceful(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		exclude := func(is bool) {
			r.touch(func(v *view.View) view.Touched {
				v.Nodes["a"] = view.Node{Excluded: is}
				return view.Touched{Nodes: map[string]struct{}{"a": {}}}
			})
			synctest.Wait()
		}
		exclude(true)
		shutdown := view.Attributes{LocalPref: 1, Communities: view.NewCommunitySet(65535 << 16)}
		for range 2 {
			if got := r.prefixes("near"); !maps.Equal(got, map[netip.Prefix]view.Attributes{route1: shutdown}) {
				t.Fatalf("routes %v, want %v", got, shutdown)
			}
			time.Sleep(4900 * time.Millisecond / 2)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got := r.prefixes("near"); len(got) > 0 || len(r.prefixes("far")) > 0 {
			t.Errorf("routes %v five seconds later", got)
		}
		if !has(r.addrs, vip1) || len(r.table(t)) == 0 {
			t.Error("the node does not forward any more")
		}
		exclude(false)
		if got := r.prefixes("near"); !maps.Equal(got, map[netip.Prefix]view.Attributes{route1: {}}) {
			t.Errorf("routes %v without the label", got)
		}
		r.wantPlanned(t)
	})
}

// Neither the end nor the restart of the speaker withdraws a route.
func TestRestartKeepsRoutes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		c := &cluster{view: v, synced: true}
		r := start(t, f, c)
		r.wantPlanned(t)
		reported := maps.Clone(r.bgp.published.Routes)
		r.speaker.Leave()
		if err := <-r.done; err != nil {
			t.Error(err)
		}
		if got := r.changesSince(1); len(got) > 0 || !maps.EqualFunc(r.bgp.published.Routes, reported, maps.Equal) {
			t.Errorf("on its way out: %+v", got)
		}
		f.restart()
		c.touched.All = true
		r = start(t, f, c)
		defer r.stop()
		r.wantPlanned(t)
		if got := r.changesSince(1); len(got) != 1 || !got[0].Full || !maps.EqualFunc(got[0].Routes, reported, maps.Equal) {
			t.Errorf("when it came back: %+v, want the same once", got)
		}
	})
}

// A route of an earlier process is withdrawn before the address is removed.
func TestRestartWithdrawsFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 2, "a")
		c := &cluster{view: v, synced: true}
		r := start(t, f, c)
		r.wantPlanned(t)
		r.stop()
		f.restart()
		for key := range v.Services {
			if key.Name == "web" {
				delete(v.Services, key)
			}
		}
		c.touched.All = true
		r = start(t, f, c)
		defer r.stop()
		r.wantPlanned(t) // and fixtureAddresses checked the order
	})
}

// A session that comes up, goes down or is impossible appears in the node status, in metrics, and once in the log.
func TestSessions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		v.BGPPeers["twin"] = v.BGPPeers["near"]
		v.BGPPeers["locked"] = view.BGPPeer{Address: netip.MustParseAddr("192.0.2.253"), Wrong: routes.PasswordMissing, Message: "Secret router is missing: create it"}
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		publish := func(name string, s routes.Session) {
			r.bgp.mu.Lock()
			if r.bgp.sessions == nil {
				r.bgp.sessions = map[string]routes.Session{"other": {State: routes.SessionEstablished}} // not a configured peer
			}
			r.bgp.sessions[name] = s
			r.bgp.mu.Unlock()
			r.trigger.Now()
			synctest.Wait()
		}
		now := time.Now()
		publish("far", routes.Session{State: routes.SessionActive, Since: now, Reason: routes.Refused, Message: "connection refused"})
		publish("far", routes.Session{State: routes.SessionIdle, Since: now, Reason: routes.Refused, Message: "connection refused"})
		up := routes.Session{State: routes.SessionEstablished, Since: now, Prefixes: 7, PeerASN: 65001, Changes: 1, BFD: view.BFDUp}
		publish("far", up)
		f := r.fixture
		f.mu.Lock()
		got := f.nodeStatus.Sessions
		f.mu.Unlock()
		if len(got) != 4 || got["far"] != up || got["locked"].Reason != routes.PasswordMissing || got["locked"].State != routes.SessionIdle ||
			got["twin"].Reason != routes.Duplicate || got["near"].Reason != routes.NotConfigured {
			t.Errorf("sessions %+v", got)
		}
		metric := func(name, peer string) float64 { return r.metric(t, "ironlb_bgp_"+name, "peer", peer) }
		if up, n := metric("session_up", "far"), metric("prefixes", "far"); up != 1 || n != 7 {
			t.Errorf("up %v, %v prefixes", up, n)
		}
		if up := metric("session_up", "locked"); up != 0 {
			t.Errorf("a session that cannot be is up: %v", up)
		}
		publish("far", routes.Session{State: routes.SessionIdle, Since: now, Reason: routes.BFDWentDown, Message: "BFD: Down", Prefixes: 7, Changes: 1, BFD: view.BFDDown})
		f.mu.Lock()
		down := f.nodeStatus.Sessions["far"]
		f.mu.Unlock()
		if n := metric("prefixes", "far"); n != 0 || down.Prefixes != 0 || down.State != routes.SessionIdle {
			t.Errorf("a session that is down has %v prefixes, and is %+v", n, down)
		}
		for text, n := range map[string]int{
			`msg="BGP session not established" peer=far reason=Refused`:            1,
			`msg="BGP session not established" peer=locked reason=PasswordMissing`: 1,
			`msg="BGP session not established" peer=twin reason=Duplicate`:         1,
			`msg="BGP session is up" peer=far AS=65001`:                            1,
			`msg="BGP session is down" peer=far reason=BFDDown`:                    1,
			`msg="BFD session" peer=far state=Down`:                                1,
			`peer=other`:                                                           0,
		} {
			if got := strings.Count(r.log.String(), text); got != n {
				t.Errorf("%d lines %q, want %d", got, text, n)
			}
		}
		r.touch(func(v *view.View) view.Touched {
			delete(v.BGPPeers, "far")
			return view.Touched{BGPPeers: map[string]struct{}{"far": {}}}
		})
		r.wantPlanned(t)
		f.mu.Lock()
		defer f.mu.Unlock()
		if n, err := testutil.GatherAndCount(r.registry, "ironlb_bgp_session_up"); has(f.nodeStatus.Sessions, "far") || n != 3 || err != nil {
			t.Errorf("sessions %+v after the peer was deleted", f.nodeStatus.Sessions)
		}
	})
}

// A restarted speaker that does not publish BGP yet reports the sessions of the earlier process, once it knows them:
// without them ironlb-ccm would find no peer on this node.
func TestSessionsBeforeBGPBegins(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		r.stop()
		f.restart()
		delete(v.Nodes, "a") // so that BGP does not begin
		r.cluster.touched.All = true
		f.nodeStatus.Sessions = nil
		r = start(t, f, r.cluster)
		defer r.stop()
		reported := func(want map[string]routes.Session) {
			t.Helper()
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			if !maps.Equal(f.nodeStatus.Sessions, want) || f.bgp.begun {
				t.Errorf("sessions %+v, begun: %v; want %+v", f.nodeStatus.Sessions, f.bgp.begun, want)
			}
			if families := f.nodeStatus.Families["far"]; !families.IPv4 {
				t.Errorf("families %+v", families)
			}
		}
		reported(nil) // not connected to ironlb-bgpd
		up := routes.Session{State: routes.SessionEstablished, Since: time.Now(), PeerASN: 65001, Changes: 1}
		f.bgp.mu.Lock()
		f.bgp.sessions = map[string]routes.Session{"far": up, "near": up, "other": up}
		f.bgp.mu.Unlock()
		near, problem := up, r.speaker.desired.PeerProblems["near"]
		near.Reason, near.Message = problem.Reason, problem.Message
		r.trigger.Now()
		reported(map[string]routes.Session{"far": up, "near": near})
	})
}

// A session that is established without BFD is marked once BFD had time to come up, and not before, without an external
// trigger. The time counts from when BFD was last up or the session was established, not from each attempt.
func TestSessionWithoutBFD(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		far := v.BGPPeers["far"]
		far.BFD = view.BFD{Receive: 300 * time.Millisecond, Transmit: 100 * time.Millisecond, Multiplier: 3}
		v.BGPPeers["far"] = far
		const patience = 5*time.Second + 3*3*300*time.Millisecond
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		publish := func(s routes.Session) {
			r.bgp.mu.Lock()
			r.bgp.sessions = map[string]routes.Session{"far": s}
			r.bgp.mu.Unlock()
			r.trigger.Now()
			synctest.Wait()
		}
		var lines int
		want := func(what string, reason view.Reason, reported int) {
			t.Helper()
			synctest.Wait()
			r.fixture.mu.Lock()
			got := r.nodeStatus.Sessions["far"]
			r.fixture.mu.Unlock()
			if got.BFDReason != reason {
				t.Errorf("%s: %+v, want the reason %q", what, got, reason)
			}
			lines += reported
			if n := strings.Count(r.log.String(), `msg="BGP session is up without BFD" peer=far reason=BFDNotUp`); n != lines {
				t.Errorf("%s: %d lines in the log, want %d", what, n, lines)
			}
		}
		s := routes.Session{State: routes.SessionConnect, Since: time.Now(), BFD: view.BFDDown, BFDSince: time.Now(), BFDMessage: "no packet has arrived"}
		publish(s)
		time.Sleep(time.Minute)
		want("without BGP", "", 0)

		s.State, s.Since, s.Changes = routes.SessionEstablished, time.Now(), 1
		publish(s)
		time.Sleep(patience / 2)
		s.BFD, s.BFDSince = view.BFDInit, time.Now()
		publish(s) // an attempt
		time.Sleep(patience/2 - time.Millisecond)
		want("while it may come up", "", 0)
		time.Sleep(time.Millisecond)
		want("when it is late", routes.BFDNotUp, 1)
		s.BFD, s.BFDSince, s.BFDMessage = view.BFDDown, time.Now(), "a TTL of 63"
		publish(s)
		want("for another reason", routes.BFDNotUp, 0)

		s.BFD, s.BFDSince, s.BFDMessage = view.BFDUp, time.Now(), ""
		publish(s)
		want("up", "", 0)
		time.Sleep(time.Hour)
		s.BFD, s.BFDSince, s.BFDMessage = view.BFDDown, time.Now(), "on purpose"
		publish(s)
		time.Sleep(patience - time.Millisecond)
		want("ended a moment ago", "", 0)
		time.Sleep(time.Millisecond)
		want("ended for good", routes.BFDNotUp, 1)

		s.State, s.Since = routes.SessionIdle, time.Now()
		publish(s)
		want("BGP is down", "", 0)
		s.State, s.Since, s.Changes = routes.SessionEstablished, time.Now(), 2
		publish(s)
		want("BGP is up again", "", 0)
		s.BFD = "" // the profile is removed
		publish(s)
		time.Sleep(time.Minute)
		want("without a profile", "", 0)
	})
}

// Addresses that this node could not program are in the node status, until they are programmed. An address without a
// peer is not: other nodes may announce it.
func TestUnservedIsReported(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		reported := func() (map[view.Reason][]netip.Addr, map[string]report.SessionFamilies) {
			r.fixture.mu.Lock()
			defer r.fixture.mu.Unlock()
			return r.nodeStatus.Unserved, r.nodeStatus.Families
		}
		want := func(what string, unserved map[view.Reason][]netip.Addr, families map[string]report.SessionFamilies) {
			t.Helper()
			if u, f := reported(); !maps.EqualFunc(u, unserved, slices.Equal) || !maps.Equal(f, families) {
				t.Errorf("%s: unserved %v, families %v; want %v and %v", what, u, f, unserved, families)
			}
		}
		_, families := reported()
		want("at first", nil, families)
		if len(families) != 2 || !families["near"].IPv4 {
			t.Errorf("families %v", families)
		}
		peers := map[string]struct{}{"near": {}, "far": {}}
		r.touch(func(v *view.View) view.Touched {
			delete(v.BGPPeers, "near")
			delete(v.BGPPeers, "far")
			return view.Touched{BGPPeers: peers}
		})
		r.wantPlanned(t)
		want("without peers", nil, nil)
		r.fixture.mu.Lock()
		r.fixture.failFilter = errInjected
		r.fixture.mu.Unlock()
		r.touch(func(v *view.View) view.Touched {
			withBGP(v)
			service(v, "api", vip2, []uint16{80}, 2, "a")
			return view.Touched{BGPPeers: peers, Services: map[pools.ServiceKey]struct{}{named("api"): {}}}
		})
		time.Sleep(time.Minute)
		if got, _ := reported(); !slices.Equal(got[view.DataPlaneNotReady], []netip.Addr{vip2}) {
			t.Errorf("not programmed: %v", got)
		}
		r.fixture.mu.Lock()
		r.fixture.failFilter = nil
		r.fixture.mu.Unlock()
		time.Sleep(time.Minute)
		r.wantPlanned(t)
		want("programmed", nil, families)
	})
}

// An address that no router receives, because no session is established, does not count as announced.
func TestAddressWithoutSession(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		for _, step := range []struct {
			state     routes.SessionState
			announced float64
		}{{routes.SessionActive, 0}, {routes.SessionEstablished, 1}, {routes.SessionIdle, 0}} {
			r.bgp.mu.Lock()
			r.bgp.sessions = map[string]routes.Session{"near": {State: step.state}}
			r.bgp.mu.Unlock()
			r.trigger.Now()
			synctest.Wait()
			announced, without := r.metric(t, "ironlb_bgp_addresses", "reason", "Announced"), r.metric(t, "ironlb_bgp_addresses", "reason", "NoSession")
			if announced != step.announced || without != 1-step.announced {
				t.Errorf("session %s: %v announced, %v without a session", step.state, announced, without)
			}
		}
	})
}

// Contradicting advertisements are logged once and appear in the node status.
func TestLocalPrefsDiffer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		v.BGPAdvertisements["high"] = view.BGPAdvertisement{Length4: 32, Length6: 128, Attributes: view.Attributes{LocalPref: 200}}
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, newFixture(t), &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(time.Minute)
		r.wantPlanned(t)
		if got := r.prefixes("near")[route1].LocalPref; got != 0 {
			t.Errorf("localPref %d, want the lower one, 0 for 100", got)
		}
		r.fixture.mu.Lock()
		defer r.fixture.mu.Unlock()
		if got := r.nodeStatus.LocalPrefs; !maps.Equal(got, map[routes.LocalPrefs]int{{Lower: "each", Higher: "high"}: 1}) {
			t.Errorf("status %v", got)
		}
		if n := strings.Count(r.log.String(), "lower=each higher=high prefixes=1"); n != 1 {
			t.Errorf("%d lines about it:\n%s", n, r.log)
		}
	})
}

// A wrong sysctl blocks new addresses but withdraws no route: that would cost more than it saves.
func TestRouteOutlivesSysctl(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		clear(v.Advertisements)
		service(v, "web", vip1, []uint16{80}, 2, "a")
		theirs, more := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("203.0.113.10") // kube-proxy forwards these
		f.bgp.elsewhere = map[netip.Addr]struct{}{theirs: {}, more: {}}
		service(v, "theirs", theirs, nil, 0, "a")
		announceOnly(v, "theirs")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		synctest.Wait()
		before := r.prefixes("near")
		if len(before) != 2 {
			t.Fatalf("routes %v, want two", before)
		}
		f.mu.Lock()
		f.failSysctls = dataplane.SysctlErrors{All: errInjected}
		f.mu.Unlock()
		time.Sleep(time.Minute)
		r.set(func(v *view.View) {
			service(v, "api", vip2, []uint16{80}, 2, "a")
			service(v, "more", more, nil, 0, "a")
			announceOnly(v, "more")
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.prefixes("near"); !maps.Equal(got, before) {
			t.Errorf("routes %v, want %v", got, before)
		}
		f.mu.Lock()
		f.failSysctls = dataplane.SysctlErrors{}
		f.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.prefixes("near"); len(got) != 4 {
			t.Errorf("routes %v, want four", got)
		}
	})
}

// While an ARP sysctl is wrong, this node announces no IPv4 address by ARP, because the kernel may answer by itself. It
// still announces routes. An address of a VirtualIP is not made local then: the kernels of all nodes would answer.
func TestRoutesWithoutSysctlsOfARP(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.failSysctls = dataplane.SysctlErrors{ARP: errInjected}
		v := baseView()
		routed, theirs, six := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::4")
		f.bgp.elsewhere = map[netip.Addr]struct{}{theirs: {}}
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "routed", routed, []uint16{80}, 2)
		delete(v.VIPs, routed.String())
		service(v, "theirs", theirs, nil, 0)
		delete(v.VIPs, theirs.String())
		announceOnly(v, "theirs")
		v.Nodes["a"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
		service(v, "six", six, []uint16{80}, 1, "a")
		v.Slices[named("six")]["s"].Endpoints[0].Addr = netip.MustParseAddr("2001:db8:1::10")
		want := func(r *run, reason view.Reason, answered, reported []netip.Addr) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			var prefixes []netip.Addr
			for prefix := range r.prefixes("near") {
				prefixes = append(prefixes, prefix.Addr())
			}
			slices.SortFunc(prefixes, netip.Addr.Compare)
			f.mu.Lock()
			defer f.mu.Unlock()
			if got := slices.SortedFunc(maps.Keys(f.announced), netip.Addr.Compare); !slices.Equal(got, answered) {
				t.Errorf("answers for %v, want %v", got, answered)
			}
			if !slices.Equal(prefixes, reported) {
				t.Errorf("routes %v, want %v", prefixes, reported)
			}
			if got := f.statuses[vip1.String()].Reason; got != reason {
				t.Errorf("status of %v: %s, want %s", vip1, got, reason)
			}
			if h := r.speaker.Health(); h.Ready != (reason == view.Owner) {
				t.Errorf("health %+v", h)
			}
		}
		fail := func(wrong dataplane.SysctlErrors) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failSysctls = wrong
		}
		r := start(t, f, &cluster{view: v, synced: true})
		want(r, view.DataPlaneNotReady, []netip.Addr{six}, []netip.Addr{routed, theirs, six})
		if has(f.addrs, vip1) {
			t.Errorf("%v is local, and the kernel answers for it", vip1)
		}
		fail(dataplane.SysctlErrors{})
		all := []netip.Addr{vip1, routed, theirs, six}
		want(r, view.Owner, []netip.Addr{vip1, six}, all)
		fail(dataplane.SysctlErrors{ARP: errInjected})
		time.Sleep(time.Minute)
		if len(f.announced) != 2 {
			t.Errorf("what was answered for is not any more: %v", f.announced)
		}
		r.stop()
		f.restart()
		r = start(t, f, r.cluster)
		want(r, view.KernelAnswers, []netip.Addr{six}, all)
		r.stop()
	})
}

// The filter cannot be built at first, but can be once BGP has begun, in the same reconcile. Residual elements of an
// earlier process are still removed.
func TestFilterFailsBeforeBGPBegins(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		r.wantPlanned(t)
		r.stop()
		f.restart()
		delete(v.Services, named("api"))
		delete(v.Slices, named("api"))
		r.cluster.touched.All = true
		f.failFilter = errInjected
		f.bgp.then = func() { f.failFilter = nil }
		r = start(t, f, r.cluster)
		time.Sleep(time.Minute)
		r.wantPlanned(t)
		r.stop()
	})
}

// A cordoned node announces as before. ironlb-bgpd is informed at once that its process would not return.
func TestDecommissioningIsPublished(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		before := r.prefixes("near")
		for _, stopping := range []bool{true, false} {
			reported := len(f.bgp.changes)
			r.touch(func(v *view.View) view.Touched {
				v.Nodes["a"] = view.Node{Stopping: stopping}
				return view.Touched{Nodes: map[string]struct{}{"a": {}}}
			})
			r.wantPlanned(t)
			got := r.changesSince(reported)
			if len(got) != 1 || got[0].NodeDecommissioning != stopping || got[0].Full || len(got[0].Peers)+len(got[0].Routes) > 0 {
				t.Errorf("stopping: %v, published: %+v", stopping, got)
			}
		}
		if got := r.prefixes("near"); len(got) != 1 || !maps.Equal(got, before) {
			t.Errorf("routes %v, want %v", got, before)
		}
	})
}

func announceOnly(v *view.View, name string) {
	svc := v.Services[named(name)]
	svc.Addresses[0].AnnounceOnly = true
	v.Services[named(name)] = svc
}
