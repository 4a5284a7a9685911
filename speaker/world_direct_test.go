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

// worldTunnels is the first tier of the node. It checks that a virtual server is directed only while it has this node's
// endpoints alone, and keeps the client's address.
type worldTunnels struct {
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

type worldDirect struct{ w *world }

func (d worldDirect) Probe(_ context.Context, want ipvs.Direct) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.tunnels.probes++
	d.w.tunnels.probed = want
	if d.w.tunnels.failProbe != nil {
		return d.w.tunnels.failProbe
	}
	return d.w.tunnels.failIPv6
}

func (d worldDirect) MTU() int { return 1450 }

func (d worldDirect) SetPods(pods ipvs.PodSources) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.tunnels.pods = pods
	return nil
}

func (d worldDirect) Check(context.Context) (bool, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	t := &d.w.tunnels
	return t.applied != nil && sameDirect(*t.applied, t.have), nil
}

func (d worldDirect) Apply(_ context.Context, want ipvs.Direct, changed []ipvs.Key) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	t := &d.w.tunnels
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
	if err := d.w.change("direct"); err != nil {
		t.applied = nil
		return err
	}
	for key, v := range want.Virtuals {
		if t.applied != nil && !slices.Contains(changed, key) && t.applied.Virtuals[key] != v {
			d.w.wrong("%v differs and is not named as changed", key)
		}
		d.w.checkDirected(key, v)
	}
	want.Virtuals = maps.Clone(want.Virtuals)
	t.have, t.applied, t.begun = want, &want, true
	return nil
}

func (d worldDirect) Remove(context.Context) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.tunnels.have, d.w.tunnels.applied = ipvs.Direct{}, nil
	return d.w.change("direct")
}

func sameDirect(a, b ipvs.Direct) bool {
	return maps.Equal(a.Virtuals, b.Virtuals) && (len(a.Virtuals) == 0 || a.Self == b.Self && slices.Equal(a.Nodes, b.Nodes))
}

// checkDirected checks the second tier of a virtual server, and that tunnels lead to it once its address is local.
func (w *world) checkDirected(key ipvs.Key, v ipvs.Directed) {
	table, _ := w.kernel.ListOf(map[netip.Addr]struct{}{key.Addr: {}})
	vs, exists := table[key]
	if !exists || has(w.filter, ipvs.Element{Set: ipvs.Masqueraded, Key: key}) {
		w.wrong("%v is directed: it exists %v, filter %v", key, exists, w.filter)
	}
	if _, already := w.tunnels.have.Virtuals[key]; !already && len(vs.RealServers) == 0 && w.endpoints(key) > 0 {
		w.wrong("%v is directed before it has a real server", key)
	}
	if before, already := w.tunnels.have.Virtuals[key]; already && !before.Closed || v.Closed || w.failSysctls != (dataplane.SysctlErrors{}) {
		return
	}
	if !has(w.addrs, key.Addr) {
		w.wrong("tunnels lead to %v before its address is local", key)
	}
}

// checkUndirected checks that a virtual server is not directed while it changes to or from one that must not be.
func (w *world) checkUndirected(what string, key ipvs.Key) {
	if _, is := w.tunnels.have.Virtuals[key]; is && w.tunnels.begun && !w.tunnels.directs(key) {
		w.wrong("%s %v while it is still directed", what, key)
	}
}

// checkTier checks that packets to a reachable virtual server are directed if they are to be.
func (w *world) checkTier(key ipvs.Key) {
	if _, is := w.tunnels.have.Virtuals[key]; !is && w.tunnels.directs(key) {
		w.wrong("%v is reachable before it is directed", key)
	}
}

// checkOpen checks that tunnels lead to an address that is about to be announced.
func (w *world) checkOpen(addr netip.Addr) {
	for key, v := range w.tunnels.have.Virtuals {
		if key.Addr == addr && v.Closed {
			w.wrong("%v is announced before tunnels lead to it", key)
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
