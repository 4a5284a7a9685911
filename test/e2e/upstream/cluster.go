package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/router"
	"github.com/ironlb/ironlb/test/lab/tools"
)

const (
	nodeASN   = 65001
	routerASN = 65002
)

// Addresses of the pool: on the LAN the range that the lab does not use, with BGP a range that is on no link.
var (
	lanPool    = []string{"192.0.2.128-192.0.2.254"}
	lanPool6   = []string{"2001:db8:0:1::80/121"}
	routedPool = []string{"203.0.113.0/25"}
)

// values returns the values of the chart.
func (c Configuration) values(cluster *lab.Cluster) map[string]any {
	pool := "lan"
	values := map[string]any{}
	if c.Dataplane != "" {
		values["dataplane"] = c.Dataplane
	}
	if c.Forwarding != "" {
		values["forwarding"] = c.Forwarding
	}
	if c.KubeProxy == "" {
		values["externalIPCIDRs"] = []string{"203.0.113.250/32", "2001:db8::cb00:71fa/128"} // of test/e2e/network/service.go
	}
	addresses := lanPool
	if c.inGuest() {
		values["speaker"] = map[string]any{"config": map[string]any{"failover": map[string]any{"profile": "slow"}}}
	}
	if c.DualStack {
		addresses = slices.Concat(lanPool, lanPool6)
		values["ipv6Forwarding"] = true
	}
	advertised := map[string]any{pool: map[string]any{"ipAddressPools": []string{pool}}}
	if c.BGP == nil {
		values["l2Advertisements"] = advertised
	} else {
		addresses = routedPool
		values["bgpAdvertisements"] = advertised
		values["bgpPeers"] = map[string]any{"router": map[string]any{"myASN": nodeASN, "peerASN": routerASN,
			"peerAddress": cluster.Router.Addr.String(), "connectTime": "1s", "gracefulRestart": true}}
	}
	values["pools"] = map[string]any{pool: map[string]any{"addresses": addresses}}
	return values
}

// agnhost is the image of upstream's test servers and clients.
const agnhost = "agnhost"

// regression is the image of a server that sends packets outside the window of a connection.
const regression = "regression-issue-74839"

// specsOfImages are by the names of images. The selected tests use all other images only for a shell with network tools
// or to pause; agnhost replaces these.
var specsOfImages = map[string]string{
	agnhost:    "test/lab/images/agnhost.yaml",
	regression: "test/e2e/upstream/images/regression-issue-74839.yaml",
}

var replacedImages = []string{"busybox", "distroless-iptables", "nginx", "glibc-dns-testing", "pause"}

// imageReferences returns the test program's full names of the images, by their names.
func imageReferences(ctx context.Context, build *tools.Build) (map[string][]string, error) {
	out, err := host.Run(ctx, host.Native{}, build.Path(testProgram), "--list-images")
	if err != nil {
		return nil, fmt.Errorf("list upstream's images: %w", err)
	}
	references := map[string][]string{}
	for reference := range strings.FieldsSeq(string(out)) {
		name, _, _ := strings.Cut(reference[strings.LastIndex(reference, "/")+1:], ":")
		references[name] = append(references[name], reference)
	}
	for _, name := range append([]string{agnhost, regression}, replacedImages...) {
		if len(references[name]) == 0 {
			return nil, fmt.Errorf("the test program lists no image %s: adapt the list of images to its version", name)
		}
	}
	return references, nil
}

// newest returns the reference with the highest version: older ones are for upgrade tests.
func newest(references []string) string {
	return slices.MaxFunc(references, func(a, b string) int {
		return slices.Compare(versionOf(a), versionOf(b))
	})
}

func versionOf(reference string) []int {
	var numbers []int
	for _, field := range strings.FieldsFunc(reference[strings.LastIndex(reference, ":")+1:], func(r rune) bool { return r < '0' || r > '9' }) {
		n := 0
		for _, digit := range field {
			n = 10*n + int(digit-'0')
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// startCluster starts a cluster with IronLB installed.
func startCluster(ctx context.Context, c Configuration, references map[string][]string, progress *progress) (_ *lab.Cluster, err error) {
	kubelets := &lab.Kubelets{SingleStack: !c.DualStack, KubeProxy: c.KubeProxy, References: map[string]string{}}
	for name, spec := range specsOfImages {
		kubelets.Specs = append(kubelets.Specs, spec)
		kubelets.References[name] = newest(references[name])
	}
	slices.Sort(kubelets.Specs)
	config := lab.Config{Kernel: c.Kernel, Kubelets: kubelets, Progress: progress.w}
	if c.inGuest() {
		config.Nodes, config.NodeGrace = 2, 5*time.Minute // as few as the specs need, because they are slow
	}
	cluster, err := lab.New(ctx, config)
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, *lab.Cluster) error{
		func(ctx context.Context, cluster *lab.Cluster) error { return tagImages(ctx, cluster, references) },
		labelZones,
		c.startRouter,
		c.install,
	} {
		if err := step(ctx, cluster); err != nil {
			return cluster, err
		}
	}
	return cluster, nil
}

// tagImages adds the names of the other images to agnhost.
func tagImages(ctx context.Context, cluster *lab.Cluster, references map[string][]string) error {
	from := newest(references[agnhost])
	for _, n := range cluster.Nodes {
		for _, name := range replacedImages {
			for _, to := range references[name] {
				if err := n.Kubelet().Tag(ctx, from, to); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// labelZones puts each node into its own zone, for the tests of traffic distribution.
func labelZones(ctx context.Context, cluster *lab.Cluster) error {
	for i, n := range cluster.Nodes {
		if _, err := cluster.Kubectl(ctx, "label", "node", n.Name, fmt.Sprintf("%s=zone%d", corev1.LabelTopologyZone, i+1)); err != nil {
			return err
		}
	}
	return nil
}

// startRouter starts BIRD with a session for each node.
func (c Configuration) startRouter(ctx context.Context, cluster *lab.Cluster) error {
	if c.BGP == nil {
		return nil
	}
	on := cluster.Router
	if _, err := on.Exec(ctx, "sysctl", "-qw", fmt.Sprintf("net.ipv4.fib_multipath_hash_policy=%d", c.BGP.HashPolicy)); err != nil {
		return err
	}
	config := router.Config{ASN: routerASN, ID: on.Addr}
	for _, n := range cluster.Nodes {
		config.Neighbors = append(config.Neighbors, router.Neighbor{Name: n.Name, Address: n.Addr, ASN: nodeASN})
	}
	_, err := router.StartBIRD(ctx, router.Place{Host: on.Host(), Namespace: "/run/netns/" + on.Namespace, Logs: cluster.Dir}, config)
	return err
}

// install installs the chart.
func (c Configuration) install(ctx context.Context, cluster *lab.Cluster) error {
	values, err := json.Marshal(c.values(cluster))
	if err != nil {
		return err
	}
	file := filepath.Join(cluster.Dir, "values.json")
	if err := os.WriteFile(file, values, 0o600); err != nil {
		return err
	}
	return cluster.Install(ctx, "--values", file)
}

// keepLogs saves the logs of the lab and of IronLB's Pods, and the state of the nodes.
func keepLogs(ctx context.Context, cluster *lab.Cluster, dir string) error {
	errs := []error{cluster.SaveLogs(filepath.Join(dir, "lab"))}
	save := func(name string, out string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("save %s: %w", name, err))
			return
		}
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(out), 0o644))
	}
	for _, namespace := range []string{lab.SystemNamespace, metav1.NamespaceSystem} {
		pods, err := cluster.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list the Pods of %s: %w", namespace, err))...)
		}
		for _, pod := range pods.Items {
			for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
				args := []string{"-n", namespace, "logs", pod.Name, "-c", status.Name}
				out, err := cluster.Kubectl(ctx, args...)
				save(pod.Name+"-"+status.Name+".log", out, err)
				if status.RestartCount > 0 {
					out, err := cluster.Kubectl(ctx, append(args, "--previous")...)
					save(pod.Name+"-"+status.Name+"-previous.log", out, err)
				}
			}
		}
	}
	for name, args := range map[string][]string{
		"pods.txt": {"get", "pods", "-A", "-o", "wide"}, "events.txt": {"get", "events", "-A"},
		"virtualips.yaml": {"get", "vip", "-o", "yaml"}, "speakerstatuses.yaml": {"get", "speakerstatuses", "-o", "yaml"},
	} {
		out, err := cluster.Kubectl(ctx, args...)
		save(name, out, err)
	}
	for _, n := range cluster.Nodes {
		out, err := n.Exec(ctx, "nft", "list", "ruleset")
		save(n.Name+"-nft.txt", out, err)
	}
	return errors.Join(errs...)
}

// closeLimit is the timeout of the cleanup after an interrupt.
const closeLimit = time.Minute
