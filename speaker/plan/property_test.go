package plan

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// What a Planner keeps from one plan to the next does not change the plan.
func TestPlannerEqualsMake(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		v := NewView()
		p := NewPlanner(randomOptions(r, "n1"))
		now := time.Unix(0, 0)
		p.Plan(v, Touched{All: true}, now)
		for i, s := range randomSteps(r, 120) {
			now = now.Add(time.Duration(r.IntN(3)) * time.Minute)
			fresh := remember(p)
			desired, _ := p.Plan(v, s.apply(v), now)
			again, _ := fresh.Plan(v, Touched{All: true}, now)
			got, want := text(desired), text(again)
			if got != want {
				t.Fatalf("seed %d, step %d %+v: planner:\n%s\nfrom nothing:\n%s", seed, i, s, got, want)
			}
		}
	}
}

// remember returns a Planner that has planned nothing but knows what was chosen last, which decides what drains.
func remember(p *Planner) *Planner {
	fresh := NewPlanner(p.options)
	for key, part := range p.services {
		fresh.services[key] = servicePlan{lists: part.lists}
	}
	return fresh
}

// The order in which a View was filled, and that of the lists in it that have none, does not change the plan.
func TestOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		v := NewView()
		for _, s := range randomSteps(r, 120) {
			s.apply(v)
		}
		options := randomOptions(r, "n1")
		want := text(Make(v, options, time.Time{}))
		for range 5 {
			if got := text(Make(shuffled(r, v), options, time.Time{})); got != want {
				t.Fatalf("seed %d: plan:\n%s\nafter shuffling:\n%s", seed, want, got)
			}
		}
	}
}

// shuffled returns the same View, filled in another order.
func shuffled(r *rand.Rand, v *View) *View {
	c := NewView()
	refill(r, c.Services, v.Services, func(s Service) Service {
		s.Ports, s.Addresses, s.Sources = mixed(r, s.Ports), mixed(r, s.Addresses), mixed(r, s.Sources)
		return s
	})
	refill(r, c.Slices, v.Slices, func(m map[string]Slice) map[string]Slice {
		out := map[string]Slice{}
		refill(r, out, m, func(s Slice) Slice { return Slice{Ports: mixed(r, s.Ports), Endpoints: mixed(r, s.Endpoints)} })
		return out
	})
	refill(r, c.Nodes, v.Nodes, func(n Node) Node { n.PodCIDRs = mixed(r, n.PodCIDRs); return n })
	refill(r, c.Checks, v.Checks, func(c CheckResult) CheckResult { return c })
	refill(r, c.Host, v.Host, func(struct{}) struct{} { return struct{}{} })
	refill(r, c.OtherProxy, v.OtherProxy, func(struct{}) struct{} { return struct{}{} })
	refill(r, c.ServiceNetworks, v.ServiceNetworks, func(p []netip.Prefix) []netip.Prefix { return mixed(r, p) })
	refill(r, c.VIPs, v.VIPs, func(vip VIP) VIP { vip.Services = mixed(r, vip.Services); return vip })
	refill(r, c.Advertisements, v.Advertisements, func(a Advertisement) Advertisement { return a })
	return c
}

func onlyAnnounced(v *View, addr netip.Addr) bool {
	for _, svc := range v.Services {
		if slices.ContainsFunc(svc.Addresses, func(a Address) bool { return a.IP == addr && a.AnnounceOnly }) {
			return true
		}
	}
	return false
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

// Of all nodes at most one announces an address, and exactly one reports on a VirtualIP that some listed node can.
func TestOneNodeAnnounces(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 3))
		v := NewView()
		for _, s := range randomSteps(r, 200) {
			s.apply(v)
			announcers, reporters := map[netip.Addr]int{}, map[string]int{}
			for _, node := range []string{"n0", "n1", "n2"} {
				d := Make(v, Options{Node: node}, time.Time{})
				for a := range d.Announce {
					announcers[a]++
					if _, local := d.Local[a]; !local && !onlyAnnounced(v, a) {
						t.Fatalf("seed %d: %v is announced but not local", seed, a)
					}
				}
				for name, dec := range d.VIPs {
					if dec.Reporter {
						reporters[name]++
					}
				}
			}
			for a, n := range announcers {
				if n != 1 {
					t.Fatalf("seed %d: %d nodes announce %v", seed, n, a)
				}
			}
			live := v.Nodes["n0"].Ready || v.Nodes["n1"].Ready || v.Nodes["n2"].Ready
			for name := range v.VIPs {
				if want := map[bool]int{true: 1}[live]; reporters[name] != want {
					t.Fatalf("seed %d: %d nodes report on %s, want %d", seed, reporters[name], name, want)
				}
			}
		}
	}
}
