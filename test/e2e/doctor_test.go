package e2e

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/ironlb/ironlb/test/lab"
)

// TestDoctor: kubectl ironlb doctor names what is broken on a node or between the nodes with the remedy, and no longer
// does once it is repaired.
func TestDoctor(t *testing.T) {
	doctor := func(t *testing.T, lines ...string) {
		t.Helper()
		cluster.Await(t, patience, fmt.Sprintf("kubectl ironlb doctor reports %q", lines), func(ctx context.Context) error {
			out, err := cluster.Plugin(ctx, "doctor")
			if err != nil {
				return err
			}
			for _, line := range lines {
				if !regexp.MustCompile(`(?m)^` + line).MatchString(out) {
					return fmt.Errorf("want %s, got:\n%s", line, out)
				}
			}
			return nil
		})
	}
	do := func(t *testing.T, n *lab.Node, argv ...string) {
		t.Helper()
		if out, err := n.Exec(context.Background(), argv...); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	const bridged = "net.bridge.bridge-nf-call-iptables"
	service(t, "doctored")
	pod(t, "doctored-1", "doctored", cluster.Node(1)) // behind its node's bridge
	doctor(t, `Clock +3 +-\n`, `DataPlaneAvailable +3 +-\n`, `Reachability +3 +-\n`, `Reporting +3 +-\n`)
	for _, c := range []struct {
		name             string
		node             *lab.Node
		broken, repaired []string
		lines            []string
		check            string
	}{
		{"a kernel parameter", cluster.Node(1), []string{"sysctl", "-qw", bridged + "=0"}, []string{"sysctl", "-qw", bridged + "=1"},
			[]string{`Problem BridgeNetfilter node2: BridgeNetfilterOff: .*` + regexp.QuoteMeta(bridged) + ` is 0: set it to 1`, `BridgeNetfilter +2 +node2\n`},
			"BridgeNetfilter"},
		{"another firewall", cluster.Node(1), []string{"nft", "table inet strict { chain guard { type filter hook forward priority 0; policy drop; }; }"},
			[]string{"nft", "delete table inet strict"}, []string{`Problem FirewallsCompatible node2: FirewallDropsUnknown: chain inet strict guard `}, "FirewallsCompatible"},
		{"the MTU", cluster.Node(2), []string{"ip", "link", "set", "eth0", "mtu", "1400"}, []string{"ip", "link", "set", "eth0", "mtu", "1500"},
			[]string{`Problem MTU node3: MTUDiffers: the MTU of eth0 is 1400, .*give the interfaces of all nodes one MTU`}, "MTU"},
		{"the port of heartbeats", cluster.Node(0), []string{"nft", `table inet closed {
				chain received { type filter hook input priority 0; udp dport 7948 drop; }
				chain sent { type filter hook output priority 0; udp dport 7948 drop; }
			}`}, []string{"nft", "delete table inet closed"},
			[]string{`Problem Heartbeats node1: NoHeartbeats: receives no other speaker: open UDP 7948`,
				`Problem Heartbeats node2, node3: NoHeartbeats: does not receive the speaker of node node1: open UDP 7948`}, "Heartbeats"},
	} {
		t.Run(c.name, func(t *testing.T) {
			doctor(t, c.check+` +3 +-\n`)
			t.Cleanup(func() { doctor(t, c.check+` +3 +-\n`) })
			t.Cleanup(func() { do(t, c.node, c.repaired...) })
			do(t, c.node, c.broken...)
			doctor(t, c.lines...)
		})
	}
	t.Run("a speaker that ended", func(t *testing.T) {
		n := cluster.Node(2)
		if err := n.StopSpeaker(); err != nil {
			t.Fatal(err)
		}
		doctor(t, `Problem Reporting node3: Stopped: the speaker has ended: start it`)
		if err := startSpeaker(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		doctor(t, `Reporting +3 +-\n`)
	})
}
