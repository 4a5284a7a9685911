package router

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/test/eventually"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// TestPair: each kind learns from a BIRD. The test reads everything back: sessions, paths, BFD, the kernel's table and
// its changes.
func TestPair(t *testing.T) {
	for kind, start := range Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			a, b := netspace.New(t), netspace.New(t)
			netspace.Join(t, a, "eth0", "203.0.113.1/24", b, "eth0", "203.0.113.2/24")
			a.Address(t, "eth0", "2001:db8::1/64")
			b.Address(t, "eth0", "2001:db8::2/64")
			timers := BFDTimers{Interval: 300 * time.Millisecond, Multiplier: 3}
			reported := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/28"), netip.MustParsePrefix("2001:db8:1::/64")}
			near, far := In(t, a), In(t, b)
			monitor, err := near.Monitor(ctx)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { monitor.Stop() })
			learning, err := start(ctx, near, Config{ASN: 65001, ID: addr("203.0.113.1"), Neighbors: []Neighbor{
				{Name: "n4", Address: addr("203.0.113.2"), ASN: 65002, Password: "secret", BFD: timers},
				{Name: "n6", Address: addr("2001:db8::2"), TTLSecurity: true},
			}})
			if err != nil {
				t.Fatal(err)
			}
			ends(t, learning)
			announcing, err := StartBIRD(ctx, far, Config{ASN: 65002, ID: addr("203.0.113.2"), Announce: reported, Neighbors: []Neighbor{
				{Name: "r4", Address: addr("203.0.113.1"), ASN: 65001, Password: "secret", Active: true, BFD: timers},
				{Name: "r6", Address: addr("2001:db8::1"), ASN: 65001, TTLSecurity: true, Active: true},
			}})
			if err != nil {
				t.Fatal(err)
			}
			ends(t, announcing)
			eventually.True(t, patience, "sessions", func() bool {
				s, err := learning.Sessions(ctx)
				if err != nil {
					t.Fatal(err)
				}
				return s["n4"].Established && s["n6"].Established && s["n4"].ASN == 65002 && s["n4"].ID == addr("203.0.113.2") && s["n4"].Hold > 0 &&
					time.Since(s["n4"].Since).Abs() < 2*time.Minute
			})
			eventually.True(t, patience, "BFD", func() bool {
				s, err := learning.BFD(ctx)
				if err != nil {
					t.Fatal(err)
				}
				up := s["203.0.113.2"]
				return up.State == "Up" && up.Interval == 300*time.Millisecond && up.Detect == 900*time.Millisecond && up.Interface == "eth0"
			})
			for i, via := range []string{"203.0.113.2", "2001:db8::2"} {
				want := []netip.Addr{addr(via)}
				eventually.True(t, patience, "kernel", func() bool {
					routes, err := learning.Routes(ctx, 4+2*i)
					if err != nil {
						t.Fatal(err)
					}
					return len(routes) == 1 && routes[0].Prefix == reported[i] && slices.Equal(routes[0].Via, want)
				})
				paths, err := learning.RIB(ctx, reported[i].String())
				if err != nil || len(paths) != 1 || paths[0].From != want[0] || paths[0].NextHop != want[0] || paths[0].ASPath != "65002" || !paths[0].Best {
					t.Errorf("paths of %v: %+v, %v", reported[i], paths, err)
				}
			}
			if err := announcing.Configure(ctx, Config{ASN: 65002, ID: addr("203.0.113.2")}); err != nil {
				t.Fatal(err)
			}
			for _, p := range reported {
				if _, err := monitor.Wait(ctx, func(e Event) bool { return e.Deleted && e.Prefix == p }); err != nil {
					t.Errorf("%v: %v: %+v", p, err, monitor.Events())
				}
			}
			if none, err := learning.RIB(ctx, reported[0].String()); err != nil || len(none) != 0 {
				t.Errorf("paths after the neighbor went: %+v, %v", none, err)
			}
		})
	}
}

// TestConfigure: each kind advertises prefixes to a BIRD. After reconfiguration without one of them, that prefix is
// withdrawn and is also gone from the router's own kernel.
func TestConfigure(t *testing.T) {
	for kind, start := range Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			a, b := netspace.New(t), netspace.New(t)
			netspace.Join(t, a, "eth0", "203.0.113.1/24", b, "eth0", "203.0.113.2/24")
			kept, withdrawn := netip.MustParsePrefix("198.51.100.0/28"), netip.MustParsePrefix("198.51.100.16/28")
			conf := Config{ASN: 65002, ID: addr("203.0.113.2"), Announce: []netip.Prefix{kept, withdrawn}, Neighbors: []Neighbor{
				{Name: "learning", Address: addr("203.0.113.1"), ASN: 65001, Active: true},
			}}
			announcing, err := start(ctx, In(t, b), conf)
			if err != nil {
				t.Fatal(err)
			}
			ends(t, announcing)
			learning, err := StartBIRD(ctx, In(t, a), Config{ASN: 65001, ID: addr("203.0.113.1"), Neighbors: []Neighbor{
				{Name: "announcing", Address: addr("203.0.113.2"), ASN: 65002},
			}})
			if err != nil {
				t.Fatal(err)
			}
			ends(t, learning)
			check := func(prefix netip.Prefix, paths int) {
				t.Helper()
				eventually.Nil(t, patience, fmt.Sprintf("%v has %d paths", prefix, paths), func(context.Context) error {
					have, err := learning.RIB(ctx, prefix.String())
					return eventually.Unless(err == nil && len(have) == paths, "%v, %v", have, err)
				})
			}
			check(kept, 1)
			check(withdrawn, 1)
			before, err := learning.Sessions(ctx)
			if err != nil {
				t.Fatal(err)
			}
			conf.Announce = []netip.Prefix{kept}
			if err := announcing.Configure(ctx, conf); err != nil {
				t.Fatal(err)
			}
			check(withdrawn, 0)
			check(kept, 1)
			if after, err := learning.Sessions(ctx); err != nil || !after["announcing"].Same(before["announcing"]) {
				t.Errorf("the session is another one: %+v, %v", after, err)
			}
			routes, err := In(t, b).Routes(ctx, 4, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range routes {
				if r.Prefix == withdrawn {
					t.Errorf("the kernel of the announcing router still has %+v", r)
				}
			}
		})
	}
}

// ends stops the router at the end of the test, and prints its log if that failed.
func ends(t *testing.T, r Router) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Log())
		}
		_ = r.Stop()
	})
}
