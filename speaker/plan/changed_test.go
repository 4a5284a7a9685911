package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// Changed is complete: the previous Desired, updated only where Changed names a difference, equals the new Desired.
func TestChangedIsComplete(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 4))
		v, p := view.New(), NewPlanner(Options{Node: "n1", BGP: true})
		copied := newDesired()
		for i, s := range randomSteps(r, 120) {
			touched := s.apply(v)
			if r.IntN(20) == 0 {
				touched = view.Touched{All: true}
			}
			desired, changed := p.Plan(v, touched, time.Time{})
			follow(copied, desired, changed)
			if !reflect.DeepEqual(copied, desired) {
				t.Fatalf("seed %d, step %d %+v: followed by what changed:\n%s\nplanned:\n%s", seed, i, s, text(copied), text(desired))
			}
		}
	}
}

// follow updates a copy with the named changes and nothing else.
func follow(copied, d *Desired, c *Changed) {
	take(copied.Table, d.Table, c.Keys)
	take(copied.ServicePorts, d.ServicePorts, c.Keys)
	take(copied.ClusterInternal, d.ClusterInternal, c.Keys)
	take(copied.Direct.Virtuals, d.Direct.Virtuals, c.Keys)
	if c.DirectNodes {
		copied.Direct.Self, copied.Direct.Nodes = d.Direct.Self, slices.Clone(d.Direct.Nodes)
	}
	take(copied.Filter, d.Filter, c.Elements)
	take(copied.Local, d.Local, c.Addrs)
	take(copied.Announce, d.Announce, c.Addrs)
	take(copied.HealthPorts, d.HealthPorts, c.Services)
	take(copied.Services, d.Services, c.Services)
	take(copied.Fallbacks, d.Fallbacks, c.Services)
	take(copied.Refused, d.Refused, c.Services)
	take(copied.Checks, d.Checks, c.Checks)
	take(copied.VIPs, d.VIPs, c.VIPs)
	take(copied.Claims, d.Claims, c.VIPs)
	take(copied.Unreachable, d.Unreachable, c.Unreachable)
	copied.Gateways = d.Gateways // published with every report
	copied.SlotsDigest = d.SlotsDigest
	if c.Segments {
		copied.Segments = maps.Clone(d.Segments)
	}
	followBGP(copied, d, c)
	clear(copied.Keys)
	for key := range copied.Table {
		incremental.Index[addr, virtualKey](copied.Keys).Add(key.Addr, key)
	}
}

func take[K comparable, V any](to, from map[K]V, keys map[K]struct{}) {
	for key := range keys {
		value, ok := from[key]
		incremental.Set(to, key, value, ok)
	}
}

// A change of one Service plans no other Service: Changed names only that Service and its own objects.
func TestChangedNamesNoOther(t *testing.T) {
	v, p := many(100), NewPlanner(Options{Node: "a"})
	p.Plan(v, view.Touched{All: true}, time.Time{})
	key := serviceKey("default/s7")
	dropEndpoint(v, key)
	d, c := p.Plan(v, view.Touched{Services: map[serviceName]struct{}{key: {}}}, time.Time{})
	keys := maps.Clone(c.Keys)
	maps.DeleteFunc(keys, func(k ipvs.Key, _ struct{}) bool { return d.ServicePorts[k].Service == key })
	if len(c.Keys) == 0 || len(keys) > 0 || len(c.VIPs) > 1 || len(c.Services) != 1 || len(c.Addrs) > 0 {
		t.Errorf("changed %+v for one endpoint of %v", c, key)
	}
}

// A node that becomes unreachable costs decisions for the VirtualIPs that it owned, not for all that list it. So does a
// node that returns or changes its claims.
func TestDeathDecidesWhatWasHeld(t *testing.T) {
	const nodes, vips = 40, 200
	v, p := many(vips), NewPlanner(Options{Node: "node-0"})
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprint("node-", i))
		v.Nodes[names[i]] = view.Node{}
	}
	v.Members.Peers = map[string]view.Member{}
	for _, name := range names[1:] {
		v.Members.Peers[name] = view.Member{Alive: true, Synced: true, On: map[string]struct{}{"eth0": {}}, Claims: map[view.VIPID]view.Claim{}}
	}
	held := map[string]int{}
	for i := range vips {
		name := numbered(1, i).String()
		vip := v.VIPs[name]
		vip.Generation, vip.Nodes = 1, append(slices.Clone(names[i%nodes:]), names[:i%nodes]...)
		v.VIPs[name] = vip
		held[vip.Nodes[0]]++
		if vip.Nodes[0] != "node-0" {
			v.Members.Peers[vip.Nodes[0]].Claims[view.IDOf(name)] = view.Claim{State: view.Held, Generation: 1}
		}
	}
	now := time.Unix(1000, 0)
	desired, _ := p.Plan(v, view.Touched{All: true}, now)
	if len(desired.Announce) != held["node-0"] {
		t.Fatalf("%d addresses are answered for here, want %d", len(desired.Announce), held["node-0"])
	}
	for _, alive := range []bool{false, true} {
		m := v.Members.Peers["node-7"]
		m.Alive = alive
		v.Members.Peers["node-7"] = m
		_, c := p.Plan(v, view.Touched{Members: map[string]struct{}{"node-7": {}}}, now)
		if len(c.VIPs) != held["node-7"] {
			t.Errorf("node-7 reachable: %v: %d VirtualIPs evaluated, want its %d", alive, len(c.VIPs), held["node-7"])
		}
	}
}

// Any reports a change of each field of Touched.
func TestTouchedAny(t *testing.T) {
	if (view.Touched{}).Any() {
		t.Error("nothing is touched, and Any")
	}
	for i := range reflect.TypeFor[view.Touched]().NumField() {
		var touched view.Touched
		field := reflect.ValueOf(&touched).Elem().Field(i)
		switch field.Kind() {
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Slice:
			continue // Since, of changes that Slices names
		default:
			one := reflect.MakeMap(field.Type())
			one.SetMapIndex(reflect.Zero(field.Type().Key()), reflect.Zero(field.Type().Elem()))
			field.Set(one)
		}
		if !touched.Any() {
			t.Errorf("%s is touched, and nothing", reflect.TypeFor[view.Touched]().Field(i).Name)
		}
	}
}
