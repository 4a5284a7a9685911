package main

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/link"
)

// The node's own addresses and manual routes are foreign, and cleanup removes only IronLB's.
func TestForeignAddressesAndCleanup(t *testing.T) {
	s := netspace.New(t)
	s.Address(t, "lo", "203.0.113.1/32")
	s.Address(t, "lo", "198.51.100.1/24")
	vip := netip.MustParseAddr("203.0.113.4")
	s.Must(t, func() error {
		node, closeNode, err := openNode(newConfig(), slog.New(slog.DiscardHandler), nil)
		if err != nil {
			return err
		}
		defer closeNode()
		if _, err := node.Addresses.Add(vip); err != nil {
			return err
		}
		_, foreign, err := node.Addresses.List()
		if err != nil {
			return err
		}
		for addr, want := range map[string]bool{"203.0.113.1": true, "198.51.100.1": true, "203.0.113.4": false, "198.51.100.2": false} {
			if _, ok := foreign[netip.MustParseAddr(addr)]; ok != want {
				t.Errorf("%s is foreign: %v, want %v", addr, ok, want)
			}
		}
		if _, err := node.Addresses.Add(netip.MustParseAddr("203.0.113.1")); !errors.Is(err, link.ErrForeign) {
			t.Errorf("adding the node's own address: %v, want %v", err, link.ErrForeign)
		}
		if _, err := node.Filter.Build(t.Context(), ipvs.Filter{{Set: ipvs.Addresses, Key: ipvs.Key{Addr: vip}}: {}}); err != nil {
			return err
		}
		if err := speaker.Cleanup(t.Context(), node, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		left, after, err := node.Addresses.List()
		if err != nil {
			return err
		}
		filter, err := node.Filter.List(t.Context())
		if err != nil {
			return err
		}
		if len(left) > 0 || len(after) != len(foreign) || len(filter) > 0 {
			t.Errorf("after cleanup: ours %v, foreign %v (before %v), filter %v", left, after, foreign, filter)
		}
		return nil
	})
}

// A node without IPVS is prepared as far as possible, so that the speaker can start and report what is missing.
func TestPrepare(t *testing.T) {
	s := netspace.New(t)
	s.Must(t, func() error {
		cmd := command()
		cmd.SetArgs([]string{"prepare"})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			return err
		}
		for key, want := range map[string]string{"conf/all/arp_ignore": "1", "conf/all/arp_announce": "2", "ip_forward": "1"} {
			got, err := os.ReadFile("/proc/sys/net/ipv4/" + key)
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(got)) != want {
				t.Errorf("%s is %s, want %s", key, got, want)
			}
		}
		return nil
	})
}

// Only the initial network namespace can set the size of conntrack's table: in another the speaker reports the
// alternative.
func TestConntrackMaxNamesTheFix(t *testing.T) {
	netspace.New(t).Must(t, func() error {
		settings := sysctls{ipvs: func() bool { return false }, serviceProxy: true, limits: conntrackLimits{Min: 1 << 30}}
		_, wrong := settings.Apply(false)
		if wrong.All != nil || wrong.Limits == nil || !strings.Contains(wrong.Limits.Error(), "conntrack.min") {
			t.Errorf("wrong with the limits: %v, with the rest: %v; want that conntrack.min is named", wrong.Limits, wrong.All)
		}
		settings.limits = conntrackLimits{}
		if _, wrong := settings.Apply(false); wrong != (dataplane.SysctlErrors{}) {
			t.Errorf("without limits: %+v", wrong)
		}
		return nil
	})
}

// The scope of an error per parameter: only ARP for its own two, everything for those of forwarding.
func TestAddressesAffectedBySysctls(t *testing.T) {
	netspace.New(t).Must(t, func() error {
		want, err := link.Wanted(link.Needs{IPVS: true, IPv6: true, ServiceProxy: true})
		if err != nil {
			return err
		}
		var wrong dataplane.SysctlErrors
		keys := map[*error][]string{}
		for _, s := range want {
			keys[errorFor(&wrong, s.Key)] = append(keys[errorFor(&wrong, s.Key)], s.Key)
		}
		if got := keys[&wrong.ARP]; !slices.Equal(got, []string{"net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.arp_announce"}) {
			t.Errorf("ARP: %v", got)
		}
		if got := keys[&wrong.All]; !slices.Contains(got, "net.ipv4.ip_forward") || !slices.Contains(got, "net.ipv4.vs.conntrack") {
			t.Errorf("all: %v", got)
		}
		if !slices.Contains(keys[&wrong.IPv6], "net.ipv6.conf.all.forwarding") || len(keys[&wrong.Limits]) != 3 {
			t.Errorf("IPv6: %v, limits: %v", keys[&wrong.IPv6], keys[&wrong.Limits])
		}
		return nil
	})
}

func TestBadFlagsNameTheFix(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for args, want := range map[string]string{
		"":                                    "give --node-name or set NODE_NAME",
		"--node-name n --log-format x":        "must be text or json",
		"--node-name n --kubeconfig /nowhere": "/nowhere",
		"--node-name n extra":                 "extra",
		"cleanup --log-format=xml":            "must be text or json",
		"--node-name n --bgp-socket b.sock":   "--bgp-socket is \"b.sock\": it must be an absolute path",
		"--node-name n --dump-socket d.sock":  "--dump-socket is \"d.sock\": it must be an absolute path",
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want it to contain %q", args, err, want)
		}
	}
}
