package installed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/rare"
)

const (
	// connectivityNamespace is that of the command, and connectivityPool has its Services.
	connectivityNamespace = "ironlb-connectivity-test"
	connectivityPool      = "connectivity"
)

// connectivityResult is what the test needs of the output of "kubectl ironlb connectivity test -o json".
type connectivityResult struct {
	Name, Result, Message string
	Tried                 []struct{ From, To, Got string }
	Explanation           *struct {
		Findings []struct{ Step, State, Reason string }
	}
}

// TestConnectivity: "kubectl ironlb connectivity test", on a machine behind the router, passes against the product as
// installed. With something broken it fails and names that.
func TestConnectivity(t *testing.T) {
	rare.Test(t)
	cluster.Need(t)
	if err := cluster.Tools().Own(t.Context(), "cmd/kubectl-ironlb"); err != nil {
		t.Fatal(err)
	}
	const file = "test/e2e/installed/testdata/connectivity.yaml"
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", "-f", file, "--ignore-not-found", "--timeout=60s"); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, "apply", "-f", file)
	t.Run("all pass", func(t *testing.T) {
		results := connectivity(t, 0, "--from-here", "--failover")
		for name, want := range map[string]string{"l2": "passed", "bgp": "skipped", "dual-stack": "passed", "hairpin": "passed",
			"source-ranges": "passed", "local": "passed", "from-here": "passed", "failover": "passed"} {
			if results[name].Result != want {
				t.Errorf("%s: %+v, want %s", name, results[name], want)
			}
		}
		if got := results["from-here"].Message; !strings.Contains(got, "the endpoint sees the address of this machine") {
			t.Errorf("from-here: %s", got)
		}
		if got := results["failover"].Message; !strings.Contains(got, "for this machine") {
			t.Errorf("failover: %s", got)
		}
	})
	t.Run("BGP", func(t *testing.T) {
		r := startRouter(t, "bird", cluster.Router, cluster.Remote)
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			if _, err := cluster.Kubectl(ctx, "delete", "bgppeer/bird", "bgpadvertisement/routed", "bfdprofile/usual", "ipaddresspool/routed", "--timeout=60s"); err != nil {
				t.Error(err)
			}
		})
		if err := cluster.ApplyYAML(t.Context(), fmt.Sprintf(`
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: routed}
spec: {addresses: [%v/30], autoAssign: false}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: routed}
spec: {ipAddressPools: [routed]}
---
apiVersion: ironlb.io/v1alpha1
kind: BFDProfile
metadata: {name: usual}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: bird}
spec: {myASN: %d, peerASN: %d, peerAddress: %v, bfdProfile: usual}
`, routedAddr.Prev(), nodeASN, routerASN, r.machine.Addr)); err != nil {
			t.Fatal(err)
		}
		results := connectivity(t, 0, "--pool", "routed", "--tests", "l2,bgp", "--from-here", "--failover")
		for name, want := range map[string]string{"l2": "only BGPAdvertisements cover", "failover": "no L2Advertisement covers",
			"bgp": fmt.Sprintf("%d sessions are established and advertise 203.0.113.", len(cluster.Nodes)), "from-here": "sees the address of this machine"} {
			if got := results[name]; !strings.Contains(got.Message, want) {
				t.Errorf("%s: %+v, want %q", name, got, want)
			}
		}
	})
	t.Run("interface missing", func(t *testing.T) {
		patch := func(ctx context.Context, interfaces string) {
			if _, err := cluster.Kubectl(ctx, "patch", "l2advertisement", connectivityPool, "--type=merge", "-p", `{"spec": {"interfaces": `+interfaces+`}}`); err != nil {
				t.Error(err)
			}
		}
		t.Cleanup(func() { patch(context.WithoutCancel(t.Context()), "null") })
		patch(t.Context(), `["nothing0"]`)
		got := connectivity(t, 1, "--tests", "l2", "--timeout", "20s")["l2"]
		named := got.Explanation != nil && slices.ContainsFunc(got.Explanation.Findings, func(f struct{ Step, State, Reason string }) bool {
			return f.Step == "Owner" && f.State == "Problem" && f.Reason == "NoInterface"
		})
		if got.Result != "failed" || !named || !strings.Contains(got.Message, "NoInterface") {
			t.Errorf("%+v", got)
		}
	})
	t.Run("packets dropped", func(t *testing.T) {
		on := cluster.Node(1)
		if _, err := on.Kubelet().Exec(t.Context(), "nft", "table ip test { chain c { type filter hook prerouting priority -400; ip daddr 192.0.2.160/28 drop; }; }"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := on.Kubelet().Exec(context.WithoutCancel(t.Context()), "nft", "delete", "table", "ip", "test"); err != nil {
				t.Error(err)
			}
		})
		results := connectivity(t, 1, "--tests", "l2,hairpin", "--timeout", "1m")
		if got := results["l2"]; got.Result != "failed" || !strings.Contains(got.Message, on.Name+" to 192.0.2.16") || len(got.Tried) == 0 {
			t.Errorf("%+v", got)
		}
		if got := results["hairpin"]; got.Result != "passed" { // on another node
			t.Errorf("%+v", got)
		}
	})
}

// connectivity runs the command on the machine behind the router, and returns its results by name. Afterwards nothing is
// left of it.
func connectivity(t *testing.T, code int, args ...string) map[string]connectivityResult {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	argv := []string{"sh", "-c", `exec "$@" 2>&1 >"$0"`, file, "env", "KUBECONFIG=" + cluster.Kubeconfig(),
		cluster.Program("kubectl-ironlb"), "connectivity", "test", "--pool", connectivityPool, "--timeout", "5m", "-o", "json"}
	progress, err := cluster.Remote.Exec(t.Context(), append(argv, args...)...)
	t.Logf("%s\n%s", strings.Join(args, " "), progress)
	got, exit := 0, (*host.ExitError)(nil)
	if errors.As(err, &exit) {
		got, err = exit.Code, nil
	}
	if err != nil || got != code {
		t.Fatalf("exit code %d, want %d: %v", got, code, err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report struct{ Tests []connectivityResult }
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	results := map[string]connectivityResult{}
	for _, r := range report.Tests {
		results[r.Name] = r
	}
	if _, err := cluster.Kube.CoreV1().Namespaces().Get(t.Context(), connectivityNamespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is left: %v", err)
	}
	if out := kubectl(t, "get", "l2advertisements", "-o", "name"); strings.Contains(out, connectivityNamespace) {
		t.Errorf("an L2Advertisement is left: %s", out)
	}
	return results
}
