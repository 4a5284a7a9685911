package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// step changes one object of a View, as an informer's event does.
type step struct {
	kind, a, b int
	roll       [8]int
}

func randomSteps(r *rand.Rand, n int) []step {
	steps := make([]step, n)
	for i := range steps {
		steps[i] = step{kind: r.IntN(9), a: r.IntN(5), b: r.IntN(3)}
		for j := range steps[i].roll {
			steps[i].roll[j] = r.IntN(1000)
		}
	}
	return steps
}

func (s step) service() pools.ServiceKey {
	return pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("s", s.a)}
}

// apply changes the View and returns what was touched.
func (s step) apply(v *View) Touched {
	roll := s.roll
	key := s.service()
	services := Touched{Services: map[pools.ServiceKey]struct{}{key: {}}}
	node := func(i int) string { return fmt.Sprint("n", i%3) }
	switch s.kind {
	case 0, 1:
		svc := Service{
			Addresses: []Address{{IP: netip.AddrFrom4([4]byte{203, 0, 113, byte(roll[0] % 4)}), Pool: fmt.Sprint("p", roll[1]%2)}},
			Local:     roll[2]%2 == 0, Affinity: uint32(roll[3] % 2 * 60), Created: int64(roll[4] % 3),
		}
		for i := range 1 + roll[5]%2 {
			svc.Ports = append(svc.Ports, Port{Name: fmt.Sprint(i), Protocol: ipvs.TCP, Port: uint16(80 + (roll[6]+i)%3)})
		}
		v.Services[key] = svc
		return services
	case 2:
		delete(v.Services, key)
		return services
	case 3, 4:
		slice := Slice{Ports: []Port{{Name: "0", Protocol: ipvs.TCP, Port: 8080}, {Name: "1", Protocol: ipvs.TCP, Port: 8081}}}
		for i := range roll[0] % 4 {
			slice.Endpoints = append(slice.Endpoints, Endpoint{
				Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(roll[1+i] % 6)}), Node: node(roll[2+i]),
				Ready: roll[3+i]%2 == 0, Serving: roll[4+i]%3 > 0, Terminating: roll[4+i]%2 == 0,
			})
		}
		if v.Slices[key] == nil {
			v.Slices[key] = map[string]Slice{}
		}
		v.Slices[key][fmt.Sprint(s.b)] = slice
		return services
	case 5:
		delete(v.Slices[key], fmt.Sprint(s.b))
		return services
	case 6:
		v.Nodes[node(s.b)] = Node{Ready: roll[0]%3 > 0, Labels: map[string]string{"zone": fmt.Sprint(roll[1] % 2)}}
		return Touched{Nodes: map[string]struct{}{node(s.b): {}}}
	case 7:
		addr := netip.AddrFrom4([4]byte{203, 0, 113, byte(s.a)})
		nodes := []string{"n0", "n1", "n2"}
		first := roll[1] % 3
		v.VIPs[addr.String()] = VIP{
			Addresses: []netip.Addr{addr},
			Services:  []pools.ServiceKey{key, {Namespace: "default", Name: fmt.Sprint("s", roll[0]%5)}},
			Nodes:     append(nodes[first:], nodes[:first]...),
		}
		return Touched{VIPs: map[string]struct{}{addr.String(): {}}}
	case 8:
		ad := Advertisement{}
		if roll[0]%2 == 0 {
			ad.Pools = []string{fmt.Sprint("p", roll[1]%2)}
		}
		if roll[2]%2 == 0 {
			ad.Nodes = []pools.Selector{{{Key: "zone", Operator: pools.In, Values: []string{fmt.Sprint(roll[3] % 2)}}}}
		}
		if roll[4]%2 == 0 {
			ad.Interfaces = []string{fmt.Sprint("eth", roll[5]%2)}
		}
		v.Advertisements[fmt.Sprint(s.b)] = ad
	}
	return Touched{Advertisements: true}
}

// What a Planner keeps from one plan to the next does not change the plan.
func TestPlannerEqualsMake(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		v := NewView()
		p := NewPlanner(Options{Node: "n1"})
		for i, s := range randomSteps(r, 120) {
			fresh := remember(p)
			desired, _ := p.Plan(v, s.apply(v), time.Time{})
			again, _ := fresh.Plan(v, Touched{All: true}, time.Time{})
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
		want := text(Make(v, Options{Node: "n1"}, time.Time{}))
		for range 5 {
			if got := text(Make(shuffled(r, v), Options{Node: "n1"}, time.Time{})); got != want {
				t.Fatalf("seed %d: plan:\n%s\nafter shuffling:\n%s", seed, want, got)
			}
		}
	}
}

// shuffled returns the same View, filled in another order.
func shuffled(r *rand.Rand, v *View) *View {
	c := NewView()
	refill(r, c.Services, v.Services, func(s Service) Service { s.Ports = mixed(r, s.Ports); return s })
	refill(r, c.Slices, v.Slices, func(m map[string]Slice) map[string]Slice {
		out := map[string]Slice{}
		refill(r, out, m, func(s Slice) Slice { return Slice{Ports: mixed(r, s.Ports), Endpoints: mixed(r, s.Endpoints)} })
		return out
	})
	refill(r, c.Nodes, v.Nodes, func(n Node) Node { return n })
	refill(r, c.VIPs, v.VIPs, func(vip VIP) VIP { vip.Services = mixed(r, vip.Services); return vip })
	refill(r, c.Advertisements, v.Advertisements, func(a Advertisement) Advertisement { return a })
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
					if _, local := d.Local[a]; !local {
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
