package pools

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestGuard: after any history the result equals a linear search through the latest prefixes.
func TestGuard(t *testing.T) {
	rules := []Rule{RuleNode, RuleGateway, RulePeer, RuleAPIServer, RuleServiceNetwork, RulePodNetwork}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := NewGuard(nil)
		recorded := map[Refusal][]netip.Prefix{}
		for range 100 {
			by := Refusal{rules[r.IntN(len(rules))], fmt.Sprint(r.IntN(3))}
			var prefixes []netip.Prefix
			for range r.IntN(3) {
				prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(16))}), 28+r.IntN(5)))
			}
			before := slices.Clone(g.of[by])
			if changed := g.Set(by, prefixes...); changed == slices.Equal(before, g.of[by]) {
				t.Fatalf("seed %d: Set(%v, %v) = %v after %v", seed, by, prefixes, changed, before)
			}
			recorded[by] = prefixes
			for last := range 16 {
				addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(last)})
				var all []Refusal
				for by, prefixes := range recorded {
					if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
						all = append(all, by)
					}
				}
				slices.SortFunc(all, Refusal.compare)
				got, refused := g.Assigned(addr, "pool")
				if refused != (len(all) > 0) || refused && got != all[0] {
					t.Fatalf("seed %d: %v is refused by %v, want one of %v", seed, addr, got, all)
				}
			}
		}
		for _, rule := range rules {
			g.Replace(rule, nil)
		}
		if len(g.of)+len(g.by)+len(g.lengths[0])+len(g.lengths[1]) > 0 {
			t.Fatalf("seed %d: left over: %+v", seed, g)
		}
	}
}

// TestGuardByKind checks which rules apply to which kind of address.
func TestGuardByKind(t *testing.T) {
	g := NewGuard([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("127.0.0.0/8")})
	g.SetAddresses(Refusal{RuleNode, "n1"}, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"))
	g.SetAddresses(Refusal{RulePeer, "tor"}, netip.MustParseAddr("192.0.2.253"), netip.MustParseAddr("fe80::1%eth0"), netip.Addr{})
	g.SetAddresses(Refusal{RuleNode, "liar"}, netip.MustParseAddr("192.0.2.131")) // in the network of ClusterIPs
	g.SetAddresses(Refusal{RuleAPIServer, ""}, netip.MustParseAddr("192.0.2.2"))
	g.SetAddresses(Refusal{RuleNode, "n2"}, netip.MustParseAddr("192.0.2.2"))
	g.Set(Refusal{RuleServiceNetwork, "kubernetes"}, netip.MustParsePrefix("192.0.2.128/26"), netip.Prefix{})
	g.Set(Refusal{RulePodNetwork, "n1"}, netip.MustParsePrefix("192.0.2.64/26"))
	for _, tt := range []struct {
		addr                                           string
		given, external, externalOwn, foreign, cluster Rule
	}{
		{"192.0.2.1", RuleNode, RuleNode, "", RuleNode, RuleNode},
		{"2001:db8::1", RuleNode, RuleNode, "", RuleNode, RuleNode},
		{"192.0.2.2", RuleNode, RuleNode, RuleAPIServer, RuleNode, RuleNode},
		{"192.0.2.131", RuleNode, RuleNode, RuleServiceNetwork, RuleNode, ""},
		{"192.0.2.253", RulePeer, RulePeer, RulePeer, RulePeer, RulePeer},
		{"192.0.2.130", RuleServiceNetwork, RuleServiceNetwork, RuleServiceNetwork, RuleServiceNetwork, ""},
		{"192.0.2.65", RulePodNetwork, RulePodNetwork, "", RulePodNetwork, ""},
		{"192.0.2.9", "", "", "", "", ""},
		{"2001:db8::9", "", "", "", "", ""},
		{"203.0.113.9", "", RuleNotAllowed, RuleNotAllowed, "", ""},
		{"127.0.0.1", RuleSpecial, RuleSpecial, RuleSpecial, RuleSpecial, RuleSpecial},
		{"0.0.0.0", RuleSpecial, RuleNotAllowed, RuleNotAllowed, RuleSpecial, RuleSpecial},
		{"fe80::1", RuleSpecial, RuleNotAllowed, RuleNotAllowed, RuleSpecial, RuleSpecial},
	} {
		addr := netip.MustParseAddr(tt.addr)
		for what, pair := range map[string]struct {
			want Rule
			got  func() (Refusal, bool)
		}{
			"given":        {tt.given, func() (Refusal, bool) { return g.Assigned(addr, "pool") }},
			"external":     {tt.external, func() (Refusal, bool) { return g.External(addr, "", false) }},
			"external own": {tt.externalOwn, func() (Refusal, bool) { return g.External(addr, "", true) }},
			"foreign":      {tt.foreign, func() (Refusal, bool) { return g.Foreign(addr, false) }},
			"ClusterIP":    {tt.cluster, func() (Refusal, bool) { return g.ClusterIP(addr) }},
		} {
			got, refused := pair.got()
			if refused != (pair.want != "") || refused && got.Rule != pair.want || refused && got.String() == "" {
				t.Errorf("%s as %s: %v %q, want rule %q", addr, what, refused, got, pair.want)
			}
		}
	}
	if why, refused := g.External(netip.MustParseAddr("192.0.2.9"), "web", true); !refused || why != (Refusal{RulePool, "web"}) {
		t.Errorf("an external IP out of a pool: %v", why)
	}
	if why, refused := g.Assigned(netip.MustParseAddr("192.0.2.9"), ""); !refused || why.Rule != RuleNoPool {
		t.Errorf("an address of no pool: %v", why)
	}
}

// TestIndex: of two overlapping pools the older one has all its addresses; a pool that overlaps itself has none.
func TestIndex(t *testing.T) {
	pool := func(name string, created int64, texts ...string) Pool {
		p := Pool{Name: name, Created: time.Unix(created, 0)}
		for _, text := range texts {
			r, err := ParseRange(text)
			if err != nil {
				t.Fatal(err)
			}
			p.Ranges = append(p.Ranges, r)
		}
		return p
	}
	x := NewIndex([]Pool{
		pool("newer", 2, "192.0.2.4-192.0.2.20", "2001:db8::/64"), pool("older", 1, "192.0.2.0/29"), pool("six", 3, "2001:db8:1::/64"),
		pool("bad", 0, "203.0.113.0/24", "203.0.113.7"),
	})
	for text, want := range map[string]string{
		"192.0.2.0": "older", "192.0.2.7": "older", "192.0.2.8": "", "2001:db8::1": "", "2001:db8:1::1": "six", "203.0.113.7": "", "192.0.1.255": "",
	} {
		if got := x.PoolOf(netip.MustParseAddr(text)); got != want {
			t.Errorf("PoolOf(%s) = %q, want %q", text, got, want)
		}
	}
	if got := (Index{}).PoolOf(netip.MustParseAddr("192.0.2.1")); got != "" {
		t.Errorf("no pool: %q", got)
	}
}
