package plan

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// The state that a Planner keeps between plans does not change a plan.
func TestPlannerEqualsMake(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		v := view.New()
		p := NewPlanner(randomOptions(r, "n1"))
		now := time.Unix(0, 0)
		p.Plan(v, view.Touched{All: true}, now)
		for i, s := range randomSteps(r, 120) {
			now = now.Add(one(r, 0, 100*time.Millisecond, time.Second, time.Minute))
			fresh := p.Restart()
			desired, _ := p.Plan(v, s.apply(v), now)
			again, _ := fresh.Plan(v, view.Touched{All: true}, now)
			if desired.SlotsDigest != again.SlotsDigest {
				t.Fatalf("seed %d, step %d %+v: digest %#x, from nothing %#x", seed, i, s, desired.SlotsDigest, again.SlotsDigest)
			}
			got, want := text(desired)+p.owners.History(), text(again)+fresh.owners.History()
			if got != want {
				t.Fatalf("seed %d, step %d %+v: planner:\n%s\nfrom nothing:\n%s", seed, i, s, got, want)
			}
		}
	}
}

// The order in which the View and its unordered lists were filled does not change the plan.
func TestOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		v := view.New()
		for _, s := range randomSteps(r, 120) {
			s.apply(v)
		}
		options := randomOptions(r, "n1")
		plan := Make(v, options, time.Time{})
		want := text(plan)
		for range 5 {
			other := Make(shuffled(r, v), options, time.Time{})
			if got := text(other); got != want || other.SlotsDigest != plan.SlotsDigest {
				t.Fatalf("seed %d: plan:\n%s\nafter shuffling:\n%s", seed, want, got)
			}
		}
	}
}

// shuffled returns the same View, filled in another order.
func shuffled(r *rand.Rand, v *view.View) *view.View {
	c := view.New()
	refill(r, c.Services, v.Services, func(s view.Service) view.Service {
		s.Ports, s.Addresses, s.Sources = mixed(r, s.Ports), mixed(r, s.Addresses), mixed(r, s.Sources)
		return s
	})
	refill(r, c.Slices, v.Slices, func(m map[string]view.Slice) map[string]view.Slice {
		out := map[string]view.Slice{}
		refill(r, out, m, func(s view.Slice) view.Slice {
			return view.Slice{Ports: mixed(r, s.Ports), Endpoints: mixed(r, s.Endpoints)}
		})
		return out
	})
	refill(r, c.Nodes, v.Nodes, func(n view.Node) view.Node { n.PodCIDRs = mixed(r, n.PodCIDRs); return n })
	refill(r, c.Links, v.Links, func(l view.Link) view.Link { l.Subnets = mixed(r, l.Subnets); return l })
	refill(r, c.Unable, v.Unable, func(why view.Reason) view.Reason { return why })
	c.Members, c.Leaving, c.NotDirect, c.DirectIPv4Only = v.Members, v.Leaving, v.NotDirect, v.DirectIPv4Only
	c.Members.Peers = map[string]view.Member{}
	refill(r, c.Members.Peers, v.Members.Peers, func(m view.Member) view.Member { return m })
	refill(r, c.Checks, v.Checks, func(c view.CheckResult) view.CheckResult { return c })
	refill(r, c.Host, v.Host, func(struct{}) struct{} { return struct{}{} })
	refill(r, c.OtherProxy, v.OtherProxy, func(struct{}) struct{} { return struct{}{} })
	refill(r, c.ServiceNetworks, v.ServiceNetworks, func(p []netip.Prefix) []netip.Prefix { return mixed(r, p) })
	refill(r, c.Unreachable, v.Unreachable, func(since time.Time) time.Time { return since })
	refill(r, c.VIPs, v.VIPs, func(vip view.VIP) view.VIP { vip.Services = mixed(r, vip.Services); return vip })
	refill(r, c.Pools, v.Pools, func(p view.Pool) view.Pool { return p })
	refill(r, c.Gateways, v.Gateways, func(struct{}) struct{} { return struct{}{} })
	refill(r, c.Advertisements, v.Advertisements, func(a view.Advertisement) view.Advertisement { return a })
	refill(r, c.BGPPeers, v.BGPPeers, func(p view.BGPPeer) view.BGPPeer { return p })
	refill(r, c.BGPAdvertisements, v.BGPAdvertisements, func(a view.BGPAdvertisement) view.BGPAdvertisement { return a })
	return c
}

func refill[K comparable, V any](r *rand.Rand, to, from map[K]V, change func(V) V) {
	var keys []K
	for k := range from {
		keys = append(keys, k)
	}
	for _, k := range mixed(r, keys) {
		to[k] = change(from[k])
	}
}

func mixed[T any](r *rand.Rand, in []T) []T {
	out := slices.Clone(in)
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
