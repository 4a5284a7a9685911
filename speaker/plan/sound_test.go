package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// For any View, a plan can be applied and is consistent.
func TestPlanIsSound(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 4))
		v, p := view.New(), NewPlanner(randomOptions(r, "n1"))
		p.Plan(v, view.Touched{All: true}, time.Unix(0, 0))
		for i, s := range randomSteps(r, 120) {
			d, _ := p.Plan(v, s.apply(v), time.Unix(int64(i)*100, 0))
			if err := sound(d); err != nil {
				t.Fatalf("seed %d, step %d: %v in\n%s", seed, i, err, text(d))
			}
		}
	}
}

func sound(d *Desired) error {
	for _, table := range []ipvs.Table{d.Table, d.ClusterInternal} {
		for _, op := range ipvs.Diff(ipvs.Table{}, table) {
			if err := op.Validate(); err != nil {
				return err
			}
		}
	}
	has := func(set ipvs.Set, key ipvs.Key) bool { _, ok := d.Filter[ipvs.Element{Set: set, Key: key}]; return ok }
	for addr := range d.Local {
		if !has(ipvs.Addresses, ipvs.Key{Addr: addr}) {
			return fmt.Errorf("%v is local and its other ports are open", addr)
		}
	}
	for key := range d.ClusterInternal {
		if _, ok := d.Table[key]; !ok {
			return fmt.Errorf("%v only cluster-internal", key)
		}
	}
	for key, v := range d.Direct.Virtuals {
		if _, ok := d.Table[key]; !ok || has(ipvs.Masqueraded, key) {
			return fmt.Errorf("%v is directed: it needs a virtual server that keeps the client's address", key)
		}
		for slot, node := range v.Slots {
			if !d.Direct.Nodes[node].IsValid() || d.Direct.Nodes[node].Is4() != d.Direct.Self.Is4() {
				return fmt.Errorf("%v: slot %d leads to node %d, which has no address", key, slot, node)
			}
			if before := v.Before[slot]; !d.Direct.Nodes[before].IsValid() {
				return fmt.Errorf("%v: slot %d was of node %d, which has no address", key, slot, before)
			}
		}
	}
	for _, h := range d.HealthPorts {
		for _, addr := range h.Addrs.Addrs() {
			if key := (ipvs.Key{Addr: addr, Protocol: ipvs.TCP, Port: h.Port}); !has(ipvs.Served, key) {
				return fmt.Errorf("the health check port %v is dropped", key)
			}
		}
	}
	var allowed []ipvs.Element
	for e := range d.Filter {
		vs, exists := d.Table[e.Key]
		switch e.Set {
		case ipvs.Served:
			if !exists && !isHealthPort(d, e.Key) {
				return fmt.Errorf("%v without a virtual server", e)
			}
		case ipvs.Masqueraded, ipvs.MasqueradedUnlessPod, ipvs.Restricted:
			if !exists {
				return fmt.Errorf("%v without a virtual server", e)
			}
		case ipvs.Dropped:
			if !exists || len(takers(vs)) > 0 {
				return fmt.Errorf("%v, but it has endpoints", e)
			}
		case ipvs.Allowed:
			if !has(ipvs.Restricted, e.Key) {
				return fmt.Errorf("%v means nothing", e)
			}
			for _, f := range allowed {
				if f.Key == e.Key && f.Prefix().Overlaps(e.Prefix()) {
					return fmt.Errorf("%v overlaps %v", e, f)
				}
			}
			allowed = append(allowed, e)
		case ipvs.Addresses:
			if _, local := d.Local[e.Key.Addr]; !local {
				return fmt.Errorf("%v would close the ports of an address that is not virtual", e)
			}
		case ipvs.Hairpin:
			if !has(ipvs.Endpoints, e.Key) {
				return fmt.Errorf("%v is no endpoint", e)
			}
		}
	}
	for key := range d.Table {
		if !has(ipvs.Served, key) {
			return fmt.Errorf("%v is not served", key)
		}
	}
	return nil
}

// The choice of endpoints matches a slow, independent implementation.
func TestChoiceByTheBook(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		v := view.New()
		key := pools.ServiceKey{Namespace: "default", Name: "web"}
		addr, cluster := netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("203.0.113.5")
		svc := view.Service{
			Addresses: []view.Address{{IP: addr, Pool: "main"}, {IP: cluster, Kind: view.ClusterIP}},
			Ports:     []view.Port{{Name: "0", Protocol: ipvs.TCP, Port: 80}},
			Local:     r.IntN(2) == 0, InternalLocal: r.IntN(2) == 0,
		}
		v.Services[key] = svc
		v.Slices[key] = map[string]view.Slice{"s": randomSlice(r)}
		if zone := one(r, "", "x", "y", "z"); zone != "" {
			v.Nodes["n1"] = view.Node{Labels: map[string]string{view.LabelZone: zone}}
		}
		for _, node := range []string{"n0", "n1", "n2"} {
			incremental.Set(v.Unreachable, node, time.Unix(0, 0), seed%3 > 0 && r.IntN(3) == 0)
		}
		d := Make(v, Options{Node: "n1"}, time.Time{})
		at := func(a netip.Addr) ipvs.Key { return ipvs.Key{Addr: a, Protocol: ipvs.TCP, Port: 80} }
		all, here := byTheBook(v.Slices[key]["s"], v.Nodes["n1"].Zone(), v.Unreachable)
		internal := d.Table[at(addr)]
		if vs, ok := d.ClusterInternal[at(addr)]; ok {
			internal = vs
		}
		pick := func(local bool) []string {
			if local {
				return here
			}
			return all
		}
		for what, pair := range map[string][2][]string{
			"outside":   {takers(d.Table[at(addr)]), pick(svc.Local)},
			"internal":  {takers(internal), all},
			"ClusterIP": {takers(d.Table[at(cluster)]), pick(svc.InternalLocal)},
		} {
			if !slices.Equal(pair[0], pair[1]) {
				t.Fatalf("seed %d, %s: chosen %v, by the book %v\n%+v\n%+v", seed, what, pair[0], pair[1], svc, v.Slices[key]["s"])
			}
		}
	}
}

func takers(vs ipvs.VirtualServer) []string {
	var out []string
	for at, server := range vs.RealServers {
		if server.Weight > 0 {
			out = append(out, at.String())
		}
	}
	slices.Sort(out)
	return out
}

// byTheBook returns the IPv4 endpoints of port 8080 for policy Cluster and for policy Local on node n1: those on
// reachable nodes, or all if none is left for policy Cluster.
func byTheBook(slice view.Slice, zone string, unreachable map[string]time.Time) (all, here []string) {
	best := map[netip.Addr]view.Endpoint{} // 3.4
	for _, e := range slice.Endpoints {
		if before, twice := best[e.Addr]; e.Addr.Is4() && (!twice || precedes(e, before)) {
			best[e.Addr] = e
		}
	}
	left := maps.Clone(best)
	maps.DeleteFunc(left, func(_ netip.Addr, e view.Endpoint) bool {
		_, is := unreachable[e.Node]
		return is && e.Node != "n1"
	})
	if all, here = chosenByTheBook(left, zone); len(all) == 0 {
		all, here = chosenByTheBook(best, zone)
	}
	return all, here
}

// chosenByTheBook is byTheBook with all nodes reachable.
func chosenByTheBook(best map[netip.Addr]view.Endpoint, zone string) (all, here []string) {
	filter := func(keep func(view.Endpoint) bool) (out []view.Endpoint) {
		for _, e := range best {
			if keep(e) {
				out = append(out, e)
			}
		}
		return out
	}
	names := func(endpoints []view.Endpoint) (out []string) {
		for _, e := range endpoints {
			out = append(out, netip.AddrPortFrom(e.Addr, 8080).String())
		}
		slices.Sort(out)
		return out
	}
	every := func(in []view.Endpoint, f func(view.Endpoint) bool) bool {
		return !slices.ContainsFunc(in, func(e view.Endpoint) bool { return !f(e) })
	}
	ready := filter(func(e view.Endpoint) bool { return e.Ready })
	forNode := func(e view.Endpoint) bool { return slices.Contains(e.ForNodes, "n1") }
	forZone := func(e view.Endpoint) bool { return slices.Contains(e.ForZones, zone) }
	cluster := ready
	switch { // 3.8
	case every(ready, func(e view.Endpoint) bool { return len(e.ForNodes) > 0 }) && slices.ContainsFunc(ready, forNode):
		cluster = filter(func(e view.Endpoint) bool { return e.Ready && forNode(e) })
	case zone != "" && every(ready, func(e view.Endpoint) bool { return len(e.ForZones) > 0 }) && slices.ContainsFunc(ready, forZone):
		cluster = filter(func(e view.Endpoint) bool { return e.Ready && forZone(e) })
	}
	if len(cluster) == 0 { // 3.5
		cluster = filter(func(e view.Endpoint) bool { return !e.Ready && e.Serving && e.Terminating })
	}
	local := filter(func(e view.Endpoint) bool { return e.Ready && e.Node == "n1" }) // 3.6
	if len(local) == 0 {
		local = filter(func(e view.Endpoint) bool { return !e.Ready && e.Serving && e.Terminating && e.Node == "n1" })
	}
	return names(cluster), names(local)
}

// With any Services, an address that becomes local or is announced is none that the cluster itself needs. It is a
// ClusterIP, an address of a pool, an external IP that the operator allows, or one of another controller.
func TestOnlyAcceptedIsLocal(t *testing.T) {
	accepted, refused := 0, 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 8))
		o := randomOptions(r, "n1")
		v, p := view.New(), NewPlanner(o)
		p.Plan(v, view.Touched{All: true}, time.Unix(0, 0))
		for i, s := range randomSteps(r, 120) {
			d, _ := p.Plan(v, s.apply(v), time.Unix(int64(i)*100, 0))
			used := maps.Clone(d.Local)
			for addr := range d.Announce {
				used[addr] = struct{}{}
			}
			for addr, routed := range d.Routed {
				incremental.Set(used, addr, struct{}{}, len(routed.Prefixes) > 0)
			}
			for addr := range used {
				if why := notAccepted(v, o, addr); why != "" {
					t.Fatalf("seed %d, step %d: %v is used: %s", seed, i, addr, why)
				}
				accepted++
			}
			refused += len(d.Refused)
		}
	}
	if accepted < 1000 || refused < 1000 {
		t.Errorf("only %d addresses were used and Services refused one %d times: the test proves little", accepted, refused)
	}
}

// notAccepted returns why an address must not be used. It is independent of pools.Guard.
func notAccepted(v *view.View, o Options, addr netip.Addr) string {
	cluster, given, allowed, foreign := false, false, false, false
	for _, svc := range v.Services {
		for _, a := range svc.Addresses {
			if a.IP != addr {
				continue
			}
			switch a.Kind {
			case view.ClusterIP:
				cluster = true
			case view.LoadBalancer:
				given = given || a.Pool != ""
				for _, p := range v.Pools {
					given = given || slices.ContainsFunc(p.Ranges, func(r pools.Range) bool { return r.Contains(addr) })
				}
			case view.External:
				allowed = allowed || slices.ContainsFunc(o.ExternalIPs, func(p netip.Prefix) bool { return p.Contains(addr) })
			case view.Foreign:
				foreign = true
			}
		}
	}
	if !cluster && !given && !allowed && !foreign {
		return "neither allocated nor allowed"
	}
	for _, all := range v.ServiceNetworks {
		if cluster && slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return ""
		}
	}
	for name, n := range v.Nodes {
		if slices.Contains(n.Reached, addr) {
			return "it is an address of " + name
		}
		if !cluster && slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return "it is in a Pod CIDR of " + name
		}
	}
	for name, all := range v.ServiceNetworks {
		if !cluster && slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return "it is in ServiceCIDR " + name
		}
	}
	for name, peer := range v.BGPPeers {
		if peer.Address == addr {
			return "it is BGPPeer " + name
		}
	}
	if _, gateway := v.Gateways[addr]; gateway {
		return "it is a gateway"
	}
	if !cluster && !given {
		for key, all := range v.Slices {
			for _, slice := range all {
				if slices.ContainsFunc(slice.Endpoints, func(e view.Endpoint) bool { return e.Addr == addr }) {
					return "it is an endpoint of " + key.String()
				}
			}
		}
	}
	return ""
}
