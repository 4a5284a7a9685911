package speaker

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/plan"
)

// fixtureTunnels is the first tier of the node. It checks that a virtual server is directed only while it has this
// node's endpoints alone, and keeps the client's address.
type fixtureTunnels struct {
	have ipvs.Direct
	// applied is what this process last applied.
	applied *ipvs.Direct
	// begun is set once this process has applied something: it does not know before what an earlier one directed.
	begun bool
	pods  ipvs.PodSources
	// failProbe and failApply are errors, failIPv6 one of a probe, and of Apply with IPv6 virtual servers. probes counts
	// the probes, probed is the last one.
	failProbe, failApply error
	failIPv6             error
	probes               int
	probed               ipvs.Direct
	// directs reports whether a virtual server is to be directed, according to the speaker's plan.
	directs func(ipvs.Key) bool
}

type fixtureDirect struct{ f *fixture }

func (d fixtureDirect) Probe(_ context.Context, want ipvs.Direct) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.f.tunnels.probes++
	d.f.tunnels.probed = want
	if d.f.tunnels.failProbe != nil {
		return d.f.tunnels.failProbe
	}
	return d.f.tunnels.failIPv6
}

func (d fixtureDirect) MTU() int { return 1450 }

func (d fixtureDirect) SetPods(pods ipvs.PodSources) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.f.tunnels.pods = pods
	return nil
}

func (d fixtureDirect) Check(context.Context) (bool, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	t := &d.f.tunnels
	return t.applied != nil && sameDirect(*t.applied, t.have), nil
}

func (d fixtureDirect) Apply(_ context.Context, want ipvs.Direct, changed []ipvs.Key) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	t := &d.f.tunnels
	if t.failApply != nil && len(want.Virtuals) > 0 {
		return t.failApply
	}
	for key := range want.Virtuals {
		if key.Addr.Is6() && t.failIPv6 != nil {
			t.applied = nil
			return t.failIPv6
		}
	}
	if sameDirect(t.have, want) {
		t.applied, t.begun = &want, true
		return nil
	}
	if err := d.f.change("direct"); err != nil {
		t.applied = nil
		return err
	}
	for key, v := range want.Virtuals {
		if t.applied != nil && !slices.Contains(changed, key) && t.applied.Virtuals[key] != v {
			d.f.wrong("%v differs and is not named as changed", key)
		}
		d.f.checkDirected(key, v)
	}
	want.Virtuals = maps.Clone(want.Virtuals)
	t.have, t.applied, t.begun = want, &want, true
	return nil
}

func (d fixtureDirect) Remove(context.Context) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.f.tunnels.have, d.f.tunnels.applied = ipvs.Direct{}, nil
	return d.f.change("direct")
}

func sameDirect(a, b ipvs.Direct) bool {
	return maps.Equal(a.Virtuals, b.Virtuals) && (len(a.Virtuals) == 0 || a.Self == b.Self && slices.Equal(a.Nodes, b.Nodes))
}

// checkDirected checks the second tier of a virtual server, and that tunnels lead to it once its address is local.
func (f *fixture) checkDirected(key ipvs.Key, v ipvs.Directed) {
	table, _ := f.kernel.ListOf(map[netip.Addr]struct{}{key.Addr: {}})
	vs, exists := table[key]
	if !exists || has(f.filter, ipvs.Element{Set: ipvs.Masqueraded, Key: key}) {
		f.wrong("%v is directed: it exists %v, filter %v", key, exists, f.filter)
	}
	if _, already := f.tunnels.have.Virtuals[key]; !already && len(vs.RealServers) == 0 && f.endpoints(key) > 0 {
		f.wrong("%v is directed before it has a real server", key)
	}
	if before, already := f.tunnels.have.Virtuals[key]; already && !before.Closed || v.Closed || f.failSysctls != (dataplane.SysctlErrors{}) {
		return
	}
	if !has(f.addrs, key.Addr) {
		f.wrong("tunnels lead to %v before its address is local", key)
	}
}

// checkUndirected checks that a virtual server is not directed while it changes to or from one that must not be.
func (f *fixture) checkUndirected(what string, key ipvs.Key) {
	if _, is := f.tunnels.have.Virtuals[key]; is && f.tunnels.begun && !f.tunnels.directs(key) {
		f.wrong("%s %v while it is still directed", what, key)
	}
}

// checkTier checks that packets to a reachable virtual server are directed if they are to be.
func (f *fixture) checkTier(key ipvs.Key) {
	if _, is := f.tunnels.have.Virtuals[key]; !is && f.tunnels.directs(key) {
		f.wrong("%v is reachable before it is directed", key)
	}
}

// checkOpen checks that tunnels lead to an address that is about to be announced.
func (f *fixture) checkOpen(addr netip.Addr) {
	for key, v := range f.tunnels.have.Virtuals {
		if key.Addr == addr && v.Closed {
			f.wrong("%v is announced before tunnels lead to it", key)
		}
	}
}

// wantDirected compares the first tier with a plan, by the addresses of the slots.
func (r *run) wantDirected(t *testing.T, want *plan.Desired) {
	t.Helper()
	have := r.tunnels.have
	if len(have.Virtuals) != len(want.Direct.Virtuals) {
		t.Errorf("directed: %v, want %v", have.Virtuals, want.Direct.Virtuals)
	}
	for key, v := range want.Direct.Virtuals {
		got := have.Virtuals[key]
		if got.Slots == nil || got.ByClient != v.ByClient || got.Closed {
			t.Errorf("%v: %+v, want %+v", key, got, v)
			continue
		}
		for slot := range v.Slots {
			if a, b := have.Nodes[got.Slots[slot]], want.Direct.Nodes[v.Slots[slot]]; a != b {
				t.Errorf("%v: slot %d leads to %v, want %v", key, slot, a, b)
				break
			}
		}
	}
}
