package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/guest"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/rare"
)

// foreign creates other programs' state on a node before IronLB starts: an address, a route, an nftables table, and
// with IPVS a virtual server.
const foreign = `set -e
ip addr add 203.0.113.98/32 dev lo
ip route add local 203.0.113.97 dev lo
nft add table ip foreign
nft add chain ip foreign input '{ type filter hook input priority 5; }'
nft add rule ip foreign input ip saddr 203.0.113.96 counter drop
`

// foreignIPVS creates another program's virtual server.
const foreignIPVS = `
ipvsadm -A -t 203.0.113.99:8443 -s wlc -p 600
ipvsadm -a -t 203.0.113.99:8443 -r 192.0.2.77:443 -m -w 7
`

func layForeign(ctx context.Context, nodes ...*lab.Node) error {
	script := foreign
	if dataplane == scene.IPVS {
		script += foreignIPVS
	}
	for _, n := range nodes {
		if _, err := n.Exec(ctx, "sh", "-c", script); err != nil {
			return err
		}
	}
	return nil
}

// checkForeign checks that everything of foreign is on the node, unchanged.
func checkForeign(t *testing.T, n *lab.Node) {
	t.Helper()
	type listing struct{ show, want string }
	listings := []listing{
		{"ip -o -4 addr show dev lo", "inet 203.0.113.98/32 scope global lo"},
		{"ip -4 route show table local", "local 203.0.113.97 dev lo scope host"},
		{"nft list table ip foreign", "ip saddr 203.0.113.96 counter packets 0 bytes 0 drop"},
	}
	if dataplane == scene.IPVS {
		listings = append(listings, listing{"ipvsadm -Sn",
			"-A -t 203.0.113.99:8443 -s wlc -p 600\n-a -t 203.0.113.99:8443 -r 192.0.2.77:443 -m -w 7\n"})
	}
	for _, c := range listings {
		out, err := n.Exec(t.Context(), strings.Fields(c.show)...)
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(out, c.want) {
			t.Errorf("%s on %s lacks %q:\n%s", c.show, n.Name, c.want, out)
		}
	}
}

// absent returns an error with the state of an address that is left on a node.
func absent(ctx context.Context, n *lab.Node, addr netip.Addr) error {
	lists := []string{"ip -4 route show table local", "nft list ruleset"}
	if dataplane == scene.IPVS {
		lists = append(lists, "ipvsadm -Sn")
	}
	for _, show := range lists {
		out, err := n.Exec(ctx, strings.Fields(show)...)
		if err != nil {
			return err
		}
		if strings.Contains(out, addr.String()) {
			return fmt.Errorf("%s lists it:\n%s", show, out)
		}
	}
	return nil
}

// TestForeignObjectsStay: the foreign state on a node stays unchanged while the speaker runs, after it was stopped, and
// after its cleanup, which leaves none of IronLB's own state.
func TestForeignObjectsStay(t *testing.T) {
	rare.Test(t)
	pods(t, "foreign", 3)
	service(t, "foreign")
	addr := address(t, "foreign")
	reachable(t, cluster.Client, netip.AddrPortFrom(addr, httpPort))
	node := cluster.Node(1)
	checkForeign(t, node)

	if err := node.StopSpeaker(); err != nil {
		t.Fatal(err)
	}
	checkForeign(t, node)
	if err := absent(t.Context(), node, addr); err == nil {
		t.Error("stopping the speaker took the data plane away")
	}
	for range 2 { // the second has nothing to do
		if out, err := node.Exec(t.Context(), cluster.Program("ironlb-speaker"), "cleanup"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := absent(t.Context(), node, addr); err != nil {
		t.Errorf("after the clean-up: %v", err)
	}
	if out, err := node.Exec(t.Context(), "nft", "list", "tables"); err != nil || contains(out, "ironlb") {
		t.Errorf("after the clean-up: tables %q (%v)", out, err)
	}
	checkForeign(t, node)

	if err := startSpeaker(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := node.SpeakerReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkForeign(t, node)
}

// TestNoIPVS: on a kernel without IPVS and with the ipvs data plane, the speaker reports the missing module, is not
// ready, and keeps retrying.
func TestNoIPVS(t *testing.T) {
	if guest.Probe() == nil {
		t.Skip("this machine's kernel has IPVS, so there is no kernel without")
	}
	kubeconfig, config, keys := cluster.Kubeconfig(), filepath.Join(t.TempDir(), "speaker.yaml"), filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("a key without peers\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("dataplane: ipvs\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := cluster.Management.Start(t.Context(), "ironlb-speaker", host.Cmd{Argv: []string{
		cluster.Program("ironlb-speaker"), "--node-name", "node1", "--kubeconfig", kubeconfig, "--config", config, "--key-file", keys}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(10 * time.Second)
	cluster.Await(t, patience, "the speaker names the missing module", func(ctx context.Context) error {
		out, err := cluster.Management.Exec(ctx, "curl", "-sS", "-w", "%{http_code}", "http://127.0.0.1:7950/readyz")
		if err != nil {
			return err
		}
		if !contains(out, "ip_vs") || !strings.HasSuffix(out, "503") {
			return fmt.Errorf("got %q", out)
		}
		return nil
	})
	if !p.Running() {
		t.Errorf("it ended: %v", p.Err())
	}
}

// TestManifests: the API server accepts everything under deploy/, without unknown fields.
func TestManifests(t *testing.T) {
	if _, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", manifest.File); err != nil {
		t.Error(err)
	}
}
