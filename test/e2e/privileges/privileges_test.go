// Package privileges tests that IronLB's programs work with exactly the privileges of their manifests in deploy/.
package privileges

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/process"
)

const patience = 90 * time.Second

var cluster *lab.Cluster

func TestMain(m *testing.M) {
	lab.Main(m, lab.Config{Nodes: 1, Kernel: lab.Native, BGP: true, Contained: true}, func(_ context.Context, c *lab.Cluster) error {
		cluster = c
		return nil
	})
}

// objects give the speaker an address to serve and announce, and ironlb-bgpd a session.
const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [192.0.2.128/28, "2001:db8:0:1::80/124"]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
---
apiVersion: ironlb.io/v1alpha1
kind: BFDProfile
metadata: {name: usual}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: router}
spec: {myASN: 65001, peerASN: 65000, peerAddress: 192.0.2.1, bfdProfile: usual}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: LoadBalancer, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata:
  name: directed
  namespace: default
  annotations: {ironlb.io/forwarding: direct, ironlb.io/ips: "192.0.2.143,2001:db8:0:1::8f"}
spec: {type: LoadBalancer, ipFamilyPolicy: RequireDualStack, selector: {app: directed}, ports: [{port: 80}]}
`

// TestProgramsAreReady starts the programs as the containers of their Pods, "prepare" first, and waits until each is
// ready.
func TestProgramsAreReady(t *testing.T) {
	cluster.Need(t)
	node := cluster.Nodes[0]
	if err := cluster.ApplyYAML(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(cluster.Dir, "speaker.yaml")
	// Without the size of conntrack's table: it belongs to the initial network namespace.
	text := "serviceProxy: true\nipv6Forwarding: true\nconntrack: {maxPerCore: 0, min: 0}\nstateDir: " + filepath.Join(cluster.Dir, "state") + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ccm, err := cluster.StartCCM(t.Context(), "--probe-bind-address=127.0.0.1:7474")
	if err != nil {
		t.Fatal(err)
	}
	if err := node.StartSpeaker(t.Context(), "--config", config); err != nil {
		t.Fatal(err)
	}
	programs := map[string]struct {
		process *process.Process
		ready   func(context.Context) (string, error)
	}{
		"ironlb-ccm": {ccm, func(ctx context.Context) (string, error) {
			return cluster.Management.Exec(ctx, "curl", "-sS", "--fail-with-body", "--max-time", "5", "http://127.0.0.1:7474/readyz")
		}},
		"ironlb-speaker": {node.Speaker(), func(ctx context.Context) (string, error) {
			return node.Exec(ctx, "curl", "-sS", "--fail-with-body", "--max-time", "5", "http://127.0.0.1:7950/readyz")
		}},
		"ironlb-bgpd": {node.BGP(), func(ctx context.Context) (string, error) {
			return node.Exec(ctx, cluster.Program("ironlb-bgpd"), "healthy", "--ready", "--socket", node.BGPSocket())
		}},
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		p := programs[name]
		if err := cluster.Eventually(t.Context(), patience, name+" is ready", func(ctx context.Context) error {
			if err := p.process.Err(); err != nil {
				t.Fatal(err)
			}
			out, err := p.ready(ctx)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		}); err != nil {
			t.Errorf("%v\n%s", err, process.Tail(p.process.Log, 15))
		}
		as(t, name, p.process)
	}
	if err := cluster.Eventually(t.Context(), patience, "this node owns the addresses of both Services", func(ctx context.Context) error {
		out, err := cluster.Kubectl(ctx, "get", "virtualips", "-o", "go-template={{range .items}}{{len .spec.addresses}} {{.status.node}};{{end}}")
		if want := strings.Repeat("2 "+node.Name+";", 2); err == nil && out != want {
			err = fmt.Errorf("addresses and owner are %q, want %q", out, want)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	directs(t, node)
	if err := cluster.Eventually(t.Context(), patience, "the liveness thread has scheduling class Deadline", func(ctx context.Context) error {
		out, err := cluster.Kubectl(ctx, "get", "speakerstatus", node.Name, "-o", "jsonpath={.status.liveness.schedulingClass} {.status.liveness.message}")
		if err == nil && out != "Deadline " {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if out, err := node.Exec(t.Context(), "curl", "-sS", "--fail-with-body", "--max-time", "5", "http://127.0.0.1:10249/proxyMode"); err != nil || out != "ipvs" && out != "nftables" {
		t.Errorf("/proxyMode answers %q, %v", out, err)
	}
	if err := node.StopSpeaker(); err != nil {
		t.Fatal(err)
	}
	cleanup(t, node, config)
	for name, p := range programs {
		log, err := os.ReadFile(p.process.Log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "not permitted") || strings.Contains(line, "ermission denied") || strings.Contains(line, "ead-only file system") {
				t.Errorf("%s lacks a privilege: %s", name, line)
			}
		}
	}
}

// directs checks that the node has the first tier of a Service with forwarding "direct", in both families.
func directs(t *testing.T, node *lab.Node) {
	t.Helper()
	_, err := cluster.AddPod(t.Context(), lab.PodSpec{Name: "directed", Node: node, Labels: map[string]string{"app": "directed"}})
	if err != nil {
		t.Fatal(err)
	}
	for family, addr := range map[string]string{"ip": "192.0.2.143", "ip6": "2001:db8:0:1::8f"} {
		if err := cluster.Eventually(t.Context(), patience, addr+" is directed", func(ctx context.Context) error {
			out, err := node.Exec(ctx, "nft", "list", "set", family, "ironlb-direct", "directed")
			if err == nil && !strings.Contains(out, addr) {
				err = fmt.Errorf("it is not in %s", out)
			}
			return err
		}); err != nil {
			t.Errorf("%v\n%s", err, process.Tail(node.Speaker().Log, 15))
		}
	}
}

// cleanup checks that "cleanup" needs each capability of its container. With all of them it removes everything and
// reports it, and it succeeds when nothing is left.
func cleanup(t *testing.T, node *lab.Node, config string) {
	t.Helper()
	p, err := manifest.Read(filepath.Join(cluster.Root, "deploy"), "cleanup")
	if err != nil {
		t.Fatal(err)
	}
	run := func(p manifest.Privileges) (string, error) {
		argv := p.Contained([]string{cluster.Dir}, cluster.Program("ironlb-speaker"), "cleanup", "--config", config)
		return node.Exec(t.Context(), append([]string{"sh", "-c", `"$@" 2>&1`, "sh"}, argv...)...)
	}
	state := filepath.Join(cluster.Dir, "state")
	if err := errors.Join(os.MkdirAll(state, 0o700), os.WriteFile(filepath.Join(state, "calico-"+node.Name), nil, 0o600)); err != nil { // of an earlier process
		t.Fatal(err)
	}
	if len(p.Capabilities) == 0 {
		t.Error("cleanup has no capability: nothing to remove")
	}
	for i, name := range p.Capabilities {
		less := p
		less.Capabilities = slices.Delete(slices.Clone(p.Capabilities), i, i+1)
		out, err := run(less)
		if err == nil || !strings.Contains(out, "not permitted") {
			t.Errorf("cleanup without %s ends with %v:\n%s", name, err, out)
		}
		if i == 0 && !strings.Contains(out, "delete file") {
			t.Errorf("cleanup without %s leaves the file:\n%s", name, out)
		}
	}
	for _, want := range [][]string{
		{"delete address", `table="ip ironlb"`, `table="ip6 ironlb"`, "cleanup complete"},
		{`msg="cleanup complete" removed=0`},
	} {
		out, err := run(p)
		if err != nil {
			t.Fatalf("cleanup: %v\n%s", err, out)
		}
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("cleanup does not report %q:\n%s", text, out)
			}
		}
	}
	if out, err := node.Exec(t.Context(), "nft", "list", "tables"); err != nil || strings.Contains(out, "ironlb") {
		t.Errorf("after the cleanup there are %q, %v", out, err)
	}
	if out, err := node.Exec(t.Context(), "ip", "link", "show", "type", "vxlan"); err != nil || strings.Contains(out, "ironlb") {
		t.Errorf("after the cleanup there are tunnels %q, %v", out, err)
	}
	if out, err := node.Exec(t.Context(), "ip", "route", "show", "table", "local", "192.0.2.128/28"); err != nil || out != "" {
		t.Errorf("after the cleanup there are routes %q, %v", out, err)
	}
}

// as checks that the process has exactly the privileges of its manifest.
func as(t *testing.T, container string, p *process.Process) {
	t.Helper()
	want, err := manifest.Read(filepath.Join(cluster.Root, "deploy"), container)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		t.Errorf("%s: %v", container, err)
		return
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.TrimSpace(value)
	}
	if user, _, _ := strings.Cut(status["Uid"], "\t"); user != strconv.FormatInt(want.User, 10) {
		t.Errorf("%s runs as user %s, want %d", container, user, want.User)
	}
	bits, err := strconv.ParseUint(status["CapBnd"], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for ; bits > 0; bits &= bits - 1 {
		count++
	}
	if count != len(want.Capabilities) {
		t.Errorf("%s may have %d capabilities (%s), want %v", container, count, status["CapBnd"], want.Capabilities)
	}
	if want.User == 0 && status["CapEff"] != status["CapBnd"] || want.User != 0 && strings.Trim(status["CapEff"], "0") != "" {
		t.Errorf("%s of user %d has capabilities %s out of %s", container, want.User, status["CapEff"], status["CapBnd"])
	}
	if got := status["NoNewPrivs"] == "1"; got != want.NoNewPrivileges {
		t.Errorf("%s has no_new_privs %t, want %t", container, got, want.NoNewPrivileges)
	}
}
