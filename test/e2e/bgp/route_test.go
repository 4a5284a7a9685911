package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/test/lab/router"
)

// TestNothingPassedOn: what routers announce, a default, our own address and a network, changes nothing in any node's kernel, and is not told to
// the other router. That it is in no table of GoBGP either cannot be seen from outside: TestNothingAccepted of speaker/bgp/gobgp looks there.
func TestNothingPassedOn(t *testing.T) {
	before := whole(t)
	tables := func() (out []string) {
		t.Helper()
		for _, n := range cluster.Nodes {
			for _, family := range []string{"-4", "-6"} {
				table, err := n.Exec(t.Context(), "ip", family, "route", "show", "table", "all")
				if err != nil {
					t.Fatal(err)
				}
				lines := slices.Sorted(strings.Lines(table))
				out = append(out, n.Name+" "+family+":\n"+strings.Join(lines, ""))
			}
		}
		return out
	}
	had := tables()
	second(t, "dualStackAddressFamily: true", func(n *router.Neighbor) { n.IPv4, n.IPv6 = true, true })
	up(t)
	foreign := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"), host(vip), host(vip6),
		netip.MustParsePrefix("198.51.100.64/26"), netip.MustParsePrefix("2001:db8:9::/48")}
	for _, r := range tors {
		r.configure(t, func(c *router.Config) {
			c.Announce = foreign
			both := func(n *router.Neighbor) { n.IPv4, n.IPv6 = true, true }
			c.Neighbors = append(c.Neighbors, r.neighbors6(both)...)
		})
	}
	up(t)
	for _, r := range tors {
		eventually(t, r.name+" announces", func(ctx context.Context) error { return r.announces(ctx) })
	}
	// A route that is told after theirs: what would have come of theirs is there, too.
	later := vip.Next()
	serve(t, "later", service("later", later, vip6.Next(), ""))
	for _, r := range tors {
		r.rib(t, host(later), "from each node", func(by map[netip.Addr]router.Path) error {
			if len(by) != 2*len(cluster.Nodes) {
				return fmt.Errorf("there are %d paths", len(by))
			}
			return nil
		})
		for _, prefix := range foreign {
			paths, err := r.RIB(t.Context(), prefix.String())
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range paths {
				if strings.Count(p.ASPath, fmt.Sprint(routerASN)) > 0 || prefix != host(vip) && prefix != host(vip6) {
					t.Errorf("a node told %s of %v: %+v", r.name, prefix, p)
				}
			}
		}
	}
	end(t, "service/later")
	eventually(t, "the nodes' kernels have the routes of before", func(context.Context) error {
		for i, now := range tables() {
			if now != had[i] {
				return fmt.Errorf("they were\n%s\nand are\n%s", had[i], now)
			}
		}
		return nil
	})
	same(t, before)
}

// announces tells whether the router has sent its prefixes to each node's second session.
func (r *tor) announces(ctx context.Context) error {
	for _, n := range cluster.Nodes {
		command := "show route export " + n.Name + "v6"
		if r.name == "frr" {
			command = fmt.Sprintf("show bgp ipv6 unicast neighbors %v advertised-routes", n.Addr6)
		}
		out, err := r.Ask(ctx, command)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "2001:db8:9::/48") {
			return fmt.Errorf("to %s: %s", n.Name, out)
		}
	}
	return nil
}

// TestLocal: with policy Local the nodes with an endpoint announce, and no others; nobody when none has one.
func TestLocal(t *testing.T) {
	before := whole(t)
	local := vip.Next()
	serve(t, "local", strings.ReplaceAll(service("local", local, vip6.Next(), "externalTrafficPolicy: Local"), "app: web}\n  ports", "app: local}\n  ports"))
	routed(t, host(local))
	pod(t, "local1", "local", cluster.Node(1))
	routed(t, host(local), cluster.Node(1).Addr)
	asked(t, local)
	pod(t, "local2", "local", cluster.Node(2))
	routed(t, host(local), nodes(true, cluster.Node(0))...)
	asked(t, local)
	if err := cluster.SetPodReady(t.Context(), "default", "local1", false); err != nil {
		t.Fatal(err)
	}
	routed(t, host(local), cluster.Node(2).Addr)
	asked(t, local)
	end(t, "pod/local2")
	routed(t, host(local))
	same(t, before)
}

// TestExclude: a node that is excluded says GRACEFUL_SHUTDOWN (RFC 8326), then withdraws, and no request is lost but what is under way
// when the routers change next hops; its sessions stay.
func TestExclude(t *testing.T) {
	before := whole(t)
	n := cluster.Node(1)
	answered := clients(t, vip, tors...)
	if err := n.Exclude(t.Context()); err != nil {
		t.Fatal(err)
	}
	included := false
	include := func() {
		if included {
			return
		}
		included = true
		if err := n.Include(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(include)
	said := map[*tor]bool{}
	eventually(t, "every router hears GRACEFUL_SHUTDOWN from "+n.Name, func(ctx context.Context) error {
		for _, r := range tors {
			paths, err := r.RIB(ctx, host(vip).String())
			if err != nil {
				return err
			}
			for _, p := range paths {
				says := slices.ContainsFunc(p.Communities, func(c string) bool { return c == "65535:0" || c == "gracefulShutdown" || c == "graceful-shutdown" }) // as BIRD and FRR write it
				switch {
				case says && p.From == n.Addr:
					said[r] = true
				case says:
					t.Errorf("%v says so, too", p.From)
				}
			}
		}
		if len(said) < len(tors) {
			return fmt.Errorf("%d of them do", len(said))
		}
		return nil
	})
	routed(t, host(vip), nodes(true, n)...)
	asked(t, vip)
	include()
	routed(t, host(vip), nodes(true)...)
	answered()
	same(t, before)
}
