package speaker

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// withBGP adds a router that receives each address, and one that receives 203.0.113.0/24 as one prefix.
func withBGP(v *view.View) {
	v.BGPPeers["near"] = view.BGPPeer{Address: netip.MustParseAddr("192.0.2.251"), Port: 179, MyASN: 65000, PeerASN: 65000, DualStack: true}
	v.BGPPeers["far"] = view.BGPPeer{Address: netip.MustParseAddr("192.0.2.252"), Port: 179, MyASN: 65000, PeerASN: 65001}
	v.BGPAdvertisements["each"] = view.BGPAdvertisement{Peers: []string{"near"}, Length4: 32, Length6: 128}
	v.BGPAdvertisements["all"] = view.BGPAdvertisement{Peers: []string{"far"}, Length4: 24, Length6: 64}
}

// changeBGP makes one random change of peers or advertisements.
func changeBGP(r *rand.Rand, v *view.View) view.Touched {
	if r.IntN(2) == 0 {
		p := v.BGPPeers["near"]
		p.HoldTime = time.Duration(3+r.IntN(2)) * time.Second
		p.Wrong = ""
		if r.IntN(4) == 0 {
			p.Wrong = routes.PasswordMissing
		}
		v.BGPPeers["near"] = p
		return view.Touched{BGPPeers: map[string]struct{}{"near": {}}}
	}
	a := v.BGPAdvertisements["all"]
	a.Peers = nil
	if r.IntN(2) == 0 {
		a.Peers = []string{"far"}
	}
	a.Length4 = []int{24, 31, 32}[r.IntN(3)]
	a.Attributes.Communities = view.NewCommunitySet(uint32(r.IntN(2)))
	v.BGPAdvertisements["all"] = a
	return view.Touched{BGPAdvertisements: true}
}

func bgpOptions() plan.Options {
	o := options
	o.BGP = true
	return o
}

// fixtureBGP is ironlb-bgpd: it keeps its state over a restart of the speaker. It checks that a route is added only
// after its address is forwarded.
type fixtureBGP struct {
	f     *fixture
	begun bool // this process has published the full state
	// elsewhere are the addresses that kube-proxy forwards.
	elsewhere map[netip.Addr]struct{}

	mu        sync.Mutex
	published routes.BGP
	changes   []routes.Change
	at        []time.Time // of the changes
	then      func()      // if set, called after each change with the fixture locked
	sessions  map[string]routes.Session
}

func (b *fixtureBGP) Set(c routes.Change) {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Full == b.begun {
		b.f.wrong("change %+v: full %v, although the full state was sent: %v", c, c.Full, b.begun)
	}
	b.begun = true
	for prefix, route := range c.Routes {
		if _, already := b.published.Routes[prefix]; len(route) > 0 && !already {
			b.f.checkLeads(prefix)
		}
	}
	b.published.Apply(c)
	for prefix, route := range b.published.Routes {
		for peer := range route {
			if !has(b.published.Peers, peer) {
				b.f.wrong("route %v is for peer %s, which there is not", prefix, peer)
			}
		}
	}
	b.changes, b.at = append(b.changes, c), append(b.at, time.Now())
	if b.then != nil {
		b.then()
	}
}

func (b *fixtureBGP) Sessions() map[string]routes.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.sessions)
}

// fixtureBlackholes checks that an announced aggregate has a blackhole as long as it is announced.
type fixtureBlackholes struct{ *fixture }

func (f fixtureBlackholes) Blackholes() (map[netip.Prefix]struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blackholes == nil {
		return map[netip.Prefix]struct{}{}, nil
	}
	return maps.Clone(f.blackholes), nil
}

func (f fixtureBlackholes) AddBlackhole(prefix netip.Prefix) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if has(f.blackholes, prefix) {
		return false, nil
	}
	if err := f.change("add blackhole"); err != nil {
		return false, err
	}
	if f.blackholes == nil {
		f.blackholes = map[netip.Prefix]struct{}{}
	}
	f.blackholes[prefix] = struct{}{}
	return true, nil
}

func (f fixtureBlackholes) RemoveBlackhole(prefix netip.Prefix) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.change("delete blackhole"); err != nil {
		return false, err
	}
	f.bgp.mu.Lock()
	defer f.bgp.mu.Unlock()
	if has(f.bgp.published.Routes, prefix) {
		f.wrong("the blackhole of %v is removed while it is announced", prefix)
	}
	_, was := f.blackholes[prefix]
	delete(f.blackholes, prefix)
	return was, nil
}

// checkLeads checks that a prefix leads to a forwarded address and that a blackhole covers its unallocated addresses.
func (f *fixture) checkLeads(prefix netip.Prefix) {
	if !prefix.IsSingleIP() && !has(f.blackholes, prefix) {
		f.wrong("prefix %v is announced without a blackhole", prefix)
	}
	if has(f.bgp.elsewhere, prefix.Addr()) {
		return
	}
	if prefix.IsSingleIP() {
		f.checkForwards(prefix.Addr())
		f.checkOpen(prefix.Addr())
		return
	}
	for addr := range f.addrs {
		if table, _ := f.kernel.ListOf(map[netip.Addr]struct{}{addr: {}}); prefix.Contains(addr) && len(table) > 0 {
			f.checkForwards(addr)
			return
		}
	}
	f.wrong("prefix %v is announced, which leads to no address", prefix)
}

// checkWithdrawn checks that no route leads to an address that is about to be removed.
func (f *fixture) checkWithdrawn(addr netip.Addr) {
	f.bgp.mu.Lock()
	defer f.bgp.mu.Unlock()
	if has(f.bgp.published.Routes, netip.PrefixFrom(addr, addr.BitLen())) {
		f.wrong("address %v is removed while it is routed", addr)
	}
}

// wantRoutes checks the published routes against a plan.
func (r *run) wantRoutes(t *testing.T, want *plan.Desired) {
	t.Helper()
	r.bgp.mu.Lock()
	defer r.bgp.mu.Unlock()
	if !maps.Equal(r.bgp.published.Peers, want.BGP.Peers) || r.bgp.published.RouterID != want.BGP.RouterID || r.bgp.published.NodeDecommissioning != want.BGP.NodeDecommissioning {
		t.Errorf("peers %v, want %v", r.bgp.published, want.BGP)
	}
	sinks := map[netip.Prefix]struct{}{}
	for prefix := range want.BGP.Routes {
		if !prefix.IsSingleIP() {
			sinks[prefix] = struct{}{}
		}
	}
	if !maps.Equal(r.blackholes, sinks) {
		t.Errorf("blackholes %v, want %v", r.blackholes, sinks)
	}
	if !maps.EqualFunc(r.bgp.published.Routes, want.BGP.Routes, func(a, b routes.Route) bool { return maps.Equal(a, b) }) {
		t.Errorf("routes %v, want %v", r.bgp.published.Routes, want.BGP.Routes)
	}
}

// prefixes returns the prefixes that a peer receives.
func (r *run) prefixes(peer string) map[netip.Prefix]view.Attributes {
	r.bgp.mu.Lock()
	defer r.bgp.mu.Unlock()
	out := map[netip.Prefix]view.Attributes{}
	for prefix, route := range r.bgp.published.Routes {
		if a, sent := route[peer]; sent {
			out[prefix] = a
		}
	}
	return out
}

// changesSince returns the changes after the first n.
func (r *run) changesSince(n int) []routes.Change {
	r.bgp.mu.Lock()
	defer r.bgp.mu.Unlock()
	return r.bgp.changes[n:]
}

// local gives a Service policy Local and endpoints on these nodes.
func local(v *view.View, name string, nodes ...string) view.Touched {
	key := pools.ServiceKey{Namespace: "default", Name: name}
	svc := v.Services[key]
	svc.Local = true
	v.Services[key] = svc
	slice := view.Slice{Ports: v.Slices[key]["s"].Ports}
	for i, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, view.Endpoint{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), Node: node, Ready: true, Serving: true})
	}
	v.Slices[key] = map[string]view.Slice{"s": slice}
	return view.Touched{Services: map[pools.ServiceKey]struct{}{key: {}}}
}

// metric returns the value of a metric with these label names and values, in pairs; 0 if there is none.
func (r *run) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			same := true
			for i := 0; i < len(labels); i += 2 {
				same = same && have[labels[i]] == labels[i+1]
			}
			if same {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}
