package link_test

import (
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// TestBlackholes: packets to an address of the prefix that the node does not have are dropped; those to a local
// address, or to an interface's subnet, are not.
func TestBlackholes(t *testing.T) {
	node, router := netspace.New(t), netspace.New(t)
	netspace.Join(t, router, "eth0", "192.0.2.2/24", node, "eth0", "192.0.2.1/24")
	ip(t, node, "route", "add", "default", "via", "192.0.2.2")
	l := open(t, node)
	want := func(prefixes ...netip.Prefix) {
		t.Helper()
		set := map[netip.Prefix]struct{}{}
		for _, p := range prefixes {
			set[p] = struct{}{}
		}
		if got, err := l.Blackholes(); err != nil || !maps.Equal(got, set) {
			t.Errorf("Blackholes = %v, %v; want %v", got, err, set)
		}
	}
	change := func(act func(netip.Prefix) (bool, error), p netip.Prefix, want bool) {
		t.Helper()
		if changed, err := act(p); err != nil || changed != want {
			t.Errorf("%v: changed %v, error %v; want changed %v", p, changed, err, want)
		}
	}
	four, six, own := netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/64"), netip.MustParsePrefix("192.0.2.0/24")
	ip(t, node, "route", "add", "blackhole", "198.51.100.0/24", "proto", "static")
	want()
	for _, p := range []netip.Prefix{four, six, own} {
		change(l.AddBlackhole, p, true)
		change(l.AddBlackhole, p, false)
	}
	want(four, six, own)
	wantChange(t, l.Add, vip, true)
	route := func(to, want string) {
		t.Helper()
		node.Must(t, func() error {
			out, err := exec.Command("ip", "route", "get", "fibmatch", to).CombinedOutput()
			got := string(out)
			if err != nil && strings.Contains(got, "Invalid argument") { // the kernel's error (fib_props in net/ipv4/fib_semantics.c)
				got = "blackhole"
			}
			if !strings.HasPrefix(got, want) {
				t.Errorf("route to %s: %q, want %q", to, got, want)
			}
			return nil
		})
	}
	route("203.0.113.99", "blackhole")
	route("2001:db8::99", "blackhole")
	route(vip.String(), "local")
	route("192.0.2.2", "192.0.2.0/24 dev eth0")
	route("198.51.101.1", "default")
	for _, p := range []netip.Prefix{four, six, own} {
		change(l.RemoveBlackhole, p, true)
		change(l.RemoveBlackhole, p, false)
	}
	want()
	route("198.51.100.1", "blackhole") // another program's
}
