package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// fixtureReach reports what a test sets.
type fixtureReach struct {
	trigger *Trigger

	mu       sync.Mutex
	state    view.Reachability
	nodes    map[string][]netip.Addr
	gateways []netip.Addr
}

func (r *fixtureReach) SetNodes(nodes map[string][]netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = nodes
}

func (r *fixtureReach) SetGateways(gateways []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gateways = gateways
}

func (r *fixtureReach) State() view.Reachability {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// set makes nodes unreachable from now on.
func (r *fixtureReach) set(nodes ...string) {
	r.mu.Lock()
	r.state = view.Reachability{Unreachable: map[string]view.UnreachableNode{}}
	for _, n := range nodes {
		r.state.Unreachable[n] = view.UnreachableNode{Since: time.Now(), Silent: []view.Witness{view.WitnessEcho}}
	}
	r.mu.Unlock()
	r.trigger.Now()
}

// TestUnreachable: endpoints on an unreachable node get weight 0, are deleted after the configured time, and return at
// once.
func TestUnreachable(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.reach = &fixtureReach{}
		v := baseView()
		v.Nodes["b"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
		gateway := netip.MustParseAddr("192.0.2.1")
		v.Gateways[gateway] = struct{}{}
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "api", vip2, []uint16{80}, 2, "a")
		slice := v.Slices[named("web")]["s"]
		slice.Endpoints[1].Node = "b"
		o := options
		o.ResetAfter = 10 * time.Second
		r := startWith(t, f, &cluster{view: v, synced: true}, o)
		defer r.stop()
		r.wantPlanned(t)
		if !maps.EqualFunc(f.reach.nodes, map[string][]netip.Addr{"b": v.Nodes["b"].Addresses}, slices.Equal) ||
			!slices.Equal(f.reach.gateways, []netip.Addr{gateway}) {
			t.Errorf("it asks %v, %v", f.reach.nodes, f.reach.gateways)
		}
		weights := func(want ...uint32) {
			t.Helper()
			synctest.Wait()
			var got []uint32
			servers := r.table(t)[ipvs.Key{Addr: vip1, Protocol: ipvs.TCP, Port: 80}].RealServers
			for _, at := range slices.SortedFunc(maps.Keys(servers), netip.AddrPort.Compare) {
				got = append(got, servers[at].Weight)
			}
			if !slices.Equal(got, want) {
				t.Errorf("weights %v, want %v", got, want)
			}
		}
		weights(1, 1)
		f.mu.Lock()
		f.cleaned = nil
		f.mu.Unlock()
		f.reach.set("b")
		weights(1, 0)
		r.wantCleaned(t, "handshakes under way", webKey)
		metrics, err := r.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range metrics {
			if n := m.Metric[0].GetHistogram().GetSampleCount(); m.GetName() == "ironlb_endpoint_unreachable_programmed_seconds" && n != 1 {
				t.Errorf("%d measured", n)
			}
		}
		if got := testutil.ToFloat64(r.speaker.cfg.Metrics.reach.leftOut); got != 1 {
			t.Errorf("%v endpoints are left out", got)
		}
		if s := f.nodeStatus; len(s.Reach.Unreachable) != 1 || s.Unreachable["b"].LeftOut != 1 {
			t.Errorf("status %+v", s)
		}
		time.Sleep(o.ResetAfter - time.Second)
		weights(1, 0)
		time.Sleep(2 * time.Second)
		weights(1)
		f.reach.set()
		weights(1, 1)
		if got := testutil.ToFloat64(r.speaker.cfg.Metrics.reach.leftOut); got != 0 {
			t.Errorf("%v endpoints are left out", got)
		}
		f.reach.set("b")
		weights(1, 0)
		if got := testutil.ToFloat64(r.speaker.cfg.Metrics.reach.nodes); got != 1 {
			t.Errorf("%v nodes are unreachable", got)
		}
	})
}
