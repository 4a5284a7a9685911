package speaker

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestDump: the dump has the owners with the claims of each node, the members, and each endpoint with its use. It has no
// password, and does not change what the loop does.
func TestDump(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.reach = &fixtureReach{}
		v := baseView()
		v.Nodes["b"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
		for name, peer := range v.BGPPeers {
			peer.Password = "s3cret"
			v.BGPPeers[name] = peer
		}
		service(v, "web", vip1, []uint16{80}, 4, "a", "b")
		service(v, "api", vip2, []uint16{80}, 1, "b", "a")
		endpoints := v.Slices[named("web")]["s"].Endpoints
		endpoints[1].Node = "b"
		endpoints[2].Ready = false
		endpoints[3].Ready, endpoints[3].Terminating = false, true
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		f.reach.set("b")
		synctest.Wait()
		changes := r.changes
		d, err := r.speaker.Dump(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !d.Ready || d.Reconciled.IsZero() || len(d.VirtualIPs) != 2 || len(d.Services) != 2 || len(d.Members) != 1 {
			t.Fatalf("%+v", d)
		}
		if m := d.Members[0]; m.Node != "b" || !m.Alive || !slices.Equal(m.On, []string{"eth0"}) || m.Claims != 1 {
			t.Errorf("member %+v", m)
		}
		web, api := d.VirtualIPs[0], d.VirtualIPs[1]
		if web.Owner != "a" || web.Reason != view.Owner || web.Claims["a"] != "Held" ||
			!slices.Equal(web.Announced[vip1], []string{"eth0"}) || !slices.Equal(web.Services, []string{"default/web"}) {
			t.Errorf("%+v", web)
		}
		if api.Owner != "b" || api.Claims["b"] != "Held" || api.Claims["a"] == "Held" || len(api.Announced) > 0 {
			t.Errorf("%+v", api)
		}
		got := d.Services[1]
		want := []EndpointDump{
			{Addr: netip.MustParseAddr("192.0.2.10"), Node: "a", InUse: true, Ready: true, Serving: true},
			{Addr: netip.MustParseAddr("192.0.2.11"), Node: "b", Ready: true, Serving: true, Unreachable: true},
			{Addr: netip.MustParseAddr("192.0.2.12"), Node: "a", Serving: true},
			{Addr: netip.MustParseAddr("192.0.2.13"), Node: "a", Serving: true, Terminating: true},
		}
		if got.Service != "default/web" || got.Reason != view.Programmed || !slices.Equal(got.Endpoints, want) {
			t.Errorf("%+v\nwant endpoints %+v", got, want)
		}
		if len(got.VirtualServers) != 1 || got.VirtualServers[0].Name != "TCP 203.0.113.4:80" ||
			got.VirtualServers[0].RealServers[netip.MustParseAddrPort("192.0.2.10:8080")] == 0 {
			t.Errorf("virtual servers %+v", got.VirtualServers)
		}
		if text, err := json.Marshal(d); err != nil || strings.Contains(string(text), "s3cret") || !strings.Contains(string(text), `"203.0.113.4":["eth0"]`) {
			t.Errorf("%s, %v", text, err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.changes != changes {
			t.Errorf("%d changes", r.changes-changes)
		}
	})
}

// TestDumpDirect: with direct forwarding the nodes of the first tier are listed, and an endpoint on one of them is in use.
func TestDumpDirect(t *testing.T) {
	s := &Speaker{cfg: Config{NodeName: "a"}, view: view.New(), desired: plan.Make(view.New(), options, time.Now()), l2: advertise.NewL2(advertise.L2Config{})}
	key := ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}
	s.desired.Services[named("web")], s.desired.ServicePorts[key] = view.Programmed, forwarding.ServicePort{Service: named("web"), Port: 80}
	s.desired.Direct.Nodes = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
	s.desired.Direct.Virtuals[key] = ipvs.Directed{Slots: &ipvs.Slots{}}
	s.view.Nodes["b"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	s.view.Slices[named("web")] = map[string]view.Slice{"s": {Endpoints: []view.Endpoint{
		{Addr: netip.MustParseAddr("10.1.0.1"), Node: "b"}, {Addr: netip.MustParseAddr("10.2.0.1"), Node: "c"},
	}}}
	d := s.dump()
	if len(d.Services) != 1 || len(d.Services[0].VirtualServers) != 1 {
		t.Fatalf("%+v", d)
	}
	if got := d.Services[0].VirtualServers[0].Nodes; !slices.Equal(got, []netip.Addr{netip.MustParseAddr("192.0.2.2")}) {
		t.Errorf("nodes %v", got)
	}
	if e := d.Services[0].Endpoints; !e[0].InUse || e[1].InUse {
		t.Errorf("endpoints %+v", e)
	}
}

// TestDumpStalled: while the loop is stalled, the error names its last reconcile.
func TestDumpStalled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &Speaker{health: Health{Reconciled: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	if _, err := s.Dump(ctx); err == nil || !strings.Contains(err.Error(), "2026-01-02T03:04:05Z") {
		t.Errorf("%v", err)
	}
}
