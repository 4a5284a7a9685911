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

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/guest"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/probe"
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

// TestSpeakerRestart: a restart of a node's speaker breaks no connection through another node, and a replacement moves
// nothing. A stopped owner hands over the address; after SIGKILL its silence moves it. No new connection fails; only
// connections in progress at that moment break.
func TestSpeakerRestart(t *testing.T) {
	rare.Test(t)
	pods(t, "restart", 3)
	service(t, "restart")
	addr := address(t, "restart")
	reachable(t, cluster.Client, netip.AddrPortFrom(addr, httpPort))
	ends := map[string]func(*lab.Node) error{
		"SIGTERM": (*lab.Node).StopSpeaker, "SIGKILL": (*lab.Node).KillSpeaker, "replacement": (*lab.Node).ReplaceSpeaker,
	}
	for name, end := range ends {
		t.Run(name+" of the owner's", func(t *testing.T) {
			node := owner(t, addr, "a node", anyNode)
			s := restartAsked(t, addr, node, end)
			if name == "replacement" {
				if now := owner(t, addr, "a node", anyNode); s.Failed > 0 || now != node {
					t.Errorf("%s answers after the speaker of %s was replaced: %s", now.Name, node.Name, s)
				}
				return
			}
			if err := s.Moved(); err != nil {
				t.Errorf("while the speaker restarted: %v; in all %s", err, s)
			}
			now := owner(t, addr, "a node", anyNode)
			if name == "SIGTERM" && now == node {
				t.Errorf("%s still answers although its speaker was stopped", node.Name)
			}
		})
		t.Run(name+" of another's", func(t *testing.T) {
			node := owner(t, addr, "a node", anyNode)
			other := cluster.Nodes[0]
			if other == node {
				other = cluster.Nodes[1]
			}
			stream, err := cluster.Client.StartProbe(t.Context(), lab.Probe{Network: "stream", Target: netip.AddrPortFrom(addr, streamPort), Every: 50 * time.Millisecond, Timeout: lab.Lost})
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.WaitAnswers(t.Context(), patience, 5); err != nil {
				t.Fatal(err)
			}
			if s := restartAsked(t, addr, other, end); s.Failed > 0 {
				t.Errorf("requests failed while the speaker restarted: %s", s)
			}
			if s, err := stream.Stop(); err != nil || s.Failed > 0 {
				t.Errorf("the established connection broke: %s, %v", s, err)
			}
			if again := owner(t, addr, "a node", anyNode); again != node {
				t.Errorf("%s answers now, before the restart %s did", again.Name, node.Name)
			}
		})
	}
}

// between is the time from one request to the next. An emulated guest is fully busy with 50 requests per second.
var between = map[string]time.Duration{scene.NFTables: 20 * time.Millisecond, scene.IPVS: 100 * time.Millisecond}[dataplane]

// restartAsked restarts a node's speaker while requests are sent.
func restartAsked(t *testing.T, addr netip.Addr, node *lab.Node, end func(*lab.Node) error) probe.Summary {
	t.Helper()
	second := int(time.Second / between)
	requests, err := cluster.Client.StartProbe(t.Context(), lab.Probe{Network: "tcp", Target: netip.AddrPortFrom(addr, httpPort), Every: between, Timeout: lab.Lost})
	if err != nil {
		t.Fatal(err)
	}
	if err := requests.WaitAnswers(t.Context(), patience, second); err != nil {
		t.Fatal(err)
	}
	if err := end(node); err != nil {
		t.Fatal(err)
	}
	// Some requests without a speaker, the rest during its start and after.
	if err := requests.WaitAnswers(t.Context(), patience, 3*second); err != nil {
		t.Fatal(err)
	}
	if err := startSpeaker(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := node.SpeakerReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := requests.WaitAnswers(t.Context(), patience, second); err != nil {
		t.Fatal(err)
	}
	s, err := requests.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("requests: %s", s)
	return s
}

// TestNodeDies: another node takes over, and nothing moves back when the dead one returns.
func TestNodeDies(t *testing.T) {
	rare.Test(t)
	service(t, "dies")
	addr := address(t, "dies")
	dead := owner(t, addr, "a node", anyNode)
	// The Pods are on the other nodes, so only the owner matters.
	var left []*lab.Node
	for _, n := range cluster.Nodes {
		if n != dead {
			left = append(left, n)
		}
	}
	for i, n := range left {
		pod(t, fmt.Sprintf("dies-%d", i+1), "dies", n)
	}
	http := netip.AddrPortFrom(addr, httpPort)
	reachable(t, cluster.Client, http)
	requests, err := cluster.Client.StartProbe(t.Context(), lab.Probe{Network: "tcp", Target: http, Every: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := requests.WaitAnswers(t.Context(), patience, 10); err != nil {
		t.Fatal(err)
	}
	if err := dead.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	heir := owner(t, addr, "another node", func(n string) bool { return n != "" && n != dead.Name })
	if err := requests.WaitAnswers(t.Context(), patience, 50); err != nil {
		t.Fatal(err)
	}
	s, err := requests.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s died, %s took over: %s", dead.Name, heir.Name, s)

	if err := dead.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := layForeign(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	if err := startSpeaker(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	if err := dead.WaitReady(t.Context(), time.Minute, corev1.ConditionTrue); err != nil {
		t.Fatal(err)
	}
	if err := dead.SpeakerReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask(t, cluster.Client, "tcp", http, 20)
	if now := owner(t, addr, "a node", anyNode); now != heir {
		t.Errorf("%s answers after %s returned, want still %s", now.Name, dead.Name, heir.Name)
	}
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
