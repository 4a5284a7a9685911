// Package metrics tests what a Prometheus sees of a cluster: Debian's scrapes all programs by the chart's ServiceMonitors,
// over HTTPS and with authorization by the API server, and evaluates the chart's alerts.
package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/test/deploy/chart"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/router"
)

const (
	nodeASN, routerASN = 65001, 65002
	patience           = time.Minute
	listen             = "127.0.0.1:9090" // of Prometheus, on Management
)

// The cluster is shared by all tests. Each leaves all nodes up with both processes.
var (
	cluster *lab.Cluster
	ccm     *process.Process
	bird    router.Router
	peers   router.Config
)

// objects are a pool of two addresses of which the Service has one, announced by both ways.
const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [192.0.2.130/31]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: tor}
spec: {myASN: %d, peerASN: %d, peerAddress: %v, connectTime: 1s}
---
` + service

const service = `
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`

func TestMain(m *testing.M) {
	lab.Main(m, lab.Config{Nodes: 3, Kernel: lab.Native, BGP: true, NodeGrace: time.Minute}, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		return start(ctx)
	})
}

func start(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(cluster.Dir, "speaker.yaml"), []byte("dataplane: nftables\n"), 0o600); err != nil {
		return err
	}
	if err := startPrometheus(ctx); err != nil {
		return err
	}
	var err error
	if ccm, err = cluster.StartCCM(ctx); err != nil {
		return err
	}
	peers = router.Config{ASN: routerASN, ID: cluster.Router.Addr}
	for _, n := range cluster.Nodes {
		peers.Neighbors = append(peers.Neighbors, router.Neighbor{Name: n.Name, Address: n.Addr, ASN: nodeASN})
		if err := startSpeaker(ctx, n); err != nil {
			return err
		}
	}
	place := router.Place{Host: cluster.Router.Host(), Namespace: "/run/netns/" + cluster.Router.Namespace, Logs: cluster.Dir}
	if bird, err = router.Kinds["bird"](ctx, place, peers); err != nil {
		return err
	}
	if err := cluster.ApplyYAML(ctx, fmt.Sprintf(objects, nodeASN, routerASN, cluster.Router.Addr, "web")); err != nil {
		return err
	}
	_, err = cluster.AddPod(ctx, lab.PodSpec{Name: "web", Node: cluster.Node(0), Labels: map[string]string{"app": "web"}})
	return err
}

// secure is where the node serves metrics to Prometheus: in a Pod it is the address that the kubelet reports.
func secure(n *lab.Node) string { return n.APIAddr.String() + ":7950" }

func startSpeaker(ctx context.Context, n *lab.Node) error {
	return n.StartSpeaker(ctx, "--config", filepath.Join(cluster.Dir, "speaker.yaml"), "--secure-metrics-bind-address", secure(n))
}

// token returns one of a new ServiceAccount.
func token(ctx context.Context, name string) (string, error) {
	if err := cluster.ApplyYAML(ctx, fmt.Sprintf("{apiVersion: v1, kind: ServiceAccount, metadata: {name: %s, namespace: default}}", name)); err != nil {
		return "", err
	}
	answer, err := cluster.Kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of %s: %w", name, err)
	}
	return answer.Status.Token, nil
}

// startPrometheus applies the chart's rights for metrics, and starts Prometheus with a configuration made from its
// ServiceMonitors and its alerts. Alerts fire after three seconds.
func startPrometheus(ctx context.Context) error {
	c, err := chart.Open(ctx, os.Stderr)
	if err != nil {
		return err
	}
	docs, err := c.Template(ctx, chart.Versions[0], chart.Release, chart.Namespace, "--no-hooks",
		"--set", "metrics.secure=true,metrics.serviceMonitor.enabled=true",
		"--set", "metrics.readers[0].namespace=default,metrics.readers[0].name=prometheus")
	if err != nil {
		return err
	}
	if err := cluster.ApplyYAML(ctx, docs.Only("ClusterRole", "ClusterRoleBinding").String()); err != nil {
		return err
	}
	endpoints, err := chart.Endpoints(docs)
	if err != nil {
		return err
	}
	secret, err := token(ctx, "prometheus")
	if err != nil {
		return err
	}
	alerts, err := os.ReadFile(filepath.Join(c.Path(), "files/alerts.yaml"))
	if err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(cluster.Dir, name) }
	config := map[string]any{
		"global":     map[string]any{"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
		"rule_files": []string{file("alerts.yaml")},
	}
	var jobs []any
	for _, e := range endpoints {
		jobs = append(jobs, job(e, file("prometheus-token")))
	}
	config["scrape_configs"] = jobs
	text, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"prometheus.yaml": text, "prometheus-token": []byte(secret), "alerts.yaml": regexp.MustCompile(`for: \d+m`).ReplaceAll(alerts, []byte("for: 3s")),
	} {
		if err := os.WriteFile(file(name), data, 0o600); err != nil {
			return err
		}
	}
	_, err = cluster.Management.Start(ctx, "prometheus", host.Cmd{Argv: []string{"prometheus", "--config.file", file("prometheus.yaml"),
		"--storage.tsdb.path", file("prometheus"), "--web.listen-address", listen}})
	return err
}

// job returns the scrape_config that the Prometheus Operator makes of an endpoint. The targets, which it finds by the
// Service, are the lab's processes.
func job(e chart.Endpoint, tokenFile string) map[string]any {
	var targets []any
	target := func(address, node string) {
		targets = append(targets, map[string]any{"targets": []string{address}, "labels": map[string]string{"__meta_kubernetes_pod_node_name": node}})
	}
	if e.Service.Spec.Selector["app.kubernetes.io/name"] == "ironlb-ccm" {
		target(fmt.Sprintf("127.0.0.1:%d", e.Number), "")
	} else {
		for _, n := range cluster.Nodes {
			target(fmt.Sprintf("%v:%d", n.APIAddr, e.Number), n.Name)
		}
	}
	var relabelings []any
	for _, r := range e.Relabelings {
		relabeling := map[string]any{"target_label": r.TargetLabel}
		if len(r.SourceLabels) > 0 {
			relabeling["source_labels"] = r.SourceLabels
		}
		if r.Replacement != "" {
			relabeling["replacement"] = r.Replacement
		}
		relabelings = append(relabelings, relabeling)
	}
	return map[string]any{
		"job_name": "serviceMonitor/" + e.Service.Name + e.Path, "scheme": e.Scheme, "metrics_path": e.Path, "honor_labels": e.HonorLabels,
		"authorization": map[string]any{"credentials_file": tokenFile}, "tls_config": map[string]any{"insecure_skip_verify": e.TLSConfig.InsecureSkipVerify},
		"static_configs": targets, "relabel_configs": relabelings,
	}
}

// query returns the labels of the samples of an expression, in Prometheus' order.
func query(ctx context.Context, expr string) (samples []map[string]string, err error) {
	out, err := cluster.Management.Exec(ctx, "curl", "-sS", "--fail-with-body", "--max-time", "5",
		"-G", "http://"+listen+"/api/v1/query", "--data-urlencode", "query="+expr)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w: %s", expr, err, out)
	}
	var answer struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	for _, r := range answer.Data.Result {
		samples = append(samples, r.Metric)
	}
	return samples, nil
}
