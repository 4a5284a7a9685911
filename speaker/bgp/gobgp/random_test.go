package gobgp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestRandomChanges: after any changes, GoBGP's paths and policies match the configuration, and no residual state is
// left. No peer is reachable here.
func TestRandomChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomChanges(t, seed)
		})
	}
}

func randomChanges(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, seed))
	d := startNode(t, netspace.New(t))
	want := routes.BGP{}
	for step := range 300 {
		c := randomChange(r, step == 0 || r.IntN(50) == 0)
		want.Apply(c)
		d.apply(t, c)
		if step%3 != 0 {
			continue
		}
		got := d.exported(t)
		if diff := cmp.Diff(visible(want), got, cmp.Comparer(func(a, b view.Attributes) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Fatalf("seed %d, step %d: GoBGP (+) is not as wanted (-):\n%s", seed, step, diff)
		}
	}
}

func randomChange(r *rand.Rand, full bool) routes.Change {
	c := routes.Change{Full: full, RouterID: nodeID, Peers: map[string]*routes.Peer{}, Routes: map[netip.Prefix]routes.Route{}}
	name := func() string { return fmt.Sprintf("p%d", r.IntN(4)) }
	for range r.IntN(3) {
		n := name()
		p := routes.Peer{Address: addr("203.0.113.1" + n[1:]), Port: 179, MyASN: nodeASN, PeerASN: routerASN, IPv4: true, IPv6: r.IntN(2) == 0, NextHop6: addr("2001:db8::2")}
		if r.IntN(4) == 0 {
			p.Password = "other"
		}
		if full || r.IntN(12) > 0 {
			c.Peers[n] = &p
		} else {
			c.Peers[n] = nil
		}
	}
	sets := []routes.Route{}
	for range 2 {
		route := routes.Route{}
		for range 1 + r.IntN(3) {
			route[name()] = view.Attributes{LocalPref: uint32(r.IntN(2) * 50), Communities: view.NewCommunitySet(uint32(r.IntN(2)))}
		}
		sets = append(sets, route)
	}
	for range r.IntN(8) {
		prefix := netip.PrefixFrom(addr(fmt.Sprintf("192.0.2.%d", r.IntN(8))), 32)
		if r.IntN(2) == 0 {
			prefix = netip.PrefixFrom(addr(fmt.Sprintf("2001:db8:f::%d", r.IntN(8))), 128)
		}
		c.Routes[prefix] = sets[r.IntN(2)]
		if r.IntN(4) == 0 {
			c.Routes[prefix] = nil
		}
	}
	return c
}

// visible returns the routes of a configuration to existing peers, without those of other families.
func visible(b routes.BGP) map[netip.Prefix]routes.Route {
	out := map[netip.Prefix]routes.Route{}
	for prefix, route := range b.Routes {
		announced, known := routes.Route{}, false
		for name, a := range route {
			p, ok := b.Peers[name]
			if known = known || ok; ok && (prefix.Addr().Is4() && p.IPv4 || prefix.Addr().Is6() && p.IPv6) {
				if a.LocalPref == 0 {
					a.LocalPref = 100 // the default of all implementations
				}
				announced[name] = a
			}
		}
		if known {
			out[prefix] = announced
		}
	}
	return out
}

// exported reads from GoBGP what the peer would receive, nil for a prefix of a family that it does not have, and fails
// if there are residual sets or statements.
func (d *Driver) exported() (map[netip.Prefix]*view.Attributes, error) {
	ctx := context.Background()
	marks := map[string]string{} // by the name of their set
	if err := d.server.ListDefinedSet(ctx, &api.ListDefinedSetRequest{DefinedType: api.DefinedType_LARGE_COMMUNITY}, func(s *api.DefinedSet) {
		marks[s.Name] = strings.Trim(s.List[0], "^$")
	}); err != nil {
		return nil, err
	}
	byMark := map[string]*view.Attributes{}
	statements := 1 // "own"
	err := d.server.ListPolicy(ctx, &api.ListPolicyRequest{Name: exportPolicy}, func(p *api.Policy) {
		for _, s := range p.Statements {
			statements++
			a := attributesOf(s)
			byMark[marks[s.Conditions.LargeCommunitySet.Name]] = &a
		}
	})
	if err != nil {
		return nil, err
	}
	all := 0
	if err := d.server.ListStatement(ctx, &api.ListStatementRequest{}, func(*api.Statement) { all++ }); err != nil {
		return nil, err
	}
	if all != statements {
		return nil, fmt.Errorf("%d statements, %d in policies", all, statements)
	}
	out, used := map[netip.Prefix]*view.Attributes{}, map[string]bool{}
	for _, f := range []*api.Family{ipv4, ipv6} {
		err := d.server.ListPath(ctx, &api.ListPathRequest{TableType: api.TableType_GLOBAL, Family: f}, func(dst *api.Destination) {
			for _, a := range dst.Paths[0].Pattrs {
				var l api.LargeCommunitiesAttribute
				if a.MessageIs(&l) && a.UnmarshalTo(&l) == nil {
					c := l.Communities[0]
					mark := fmt.Sprintf("%d:%d:%d", c.GlobalAdmin, c.LocalData1, c.LocalData2)
					used[mark] = true
					out[netip.MustParsePrefix(dst.Prefix)] = byMark[mark]
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if len(marks) != len(used) {
		return nil, fmt.Errorf("%d sets for %d groups: %v", len(marks), len(used), marks)
	}
	return out, nil
}

// attributesOf returns the attributes that a statement sets.
func attributesOf(s *api.Statement) view.Attributes {
	var a view.Attributes
	a.LocalPref = s.Actions.LocalPref.GetValue()
	var all []uint32
	for _, c := range s.Actions.Community.GetCommunities() {
		high, low, _ := strings.Cut(c, ":")
		h, _ := strconv.ParseUint(high, 10, 16)
		l, _ := strconv.ParseUint(low, 10, 16)
		all = append(all, uint32(h)<<16|uint32(l))
	}
	a.Communities = view.NewCommunitySet(all...)
	return a
}
