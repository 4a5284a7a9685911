package lab

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// KubeProxyMetrics is the address of kube-proxy's /metrics, /proxyMode and /configz, on the node itself.
var KubeProxyMetrics = netip.MustParseAddrPort("127.0.0.1:10249")

// KubeProxyConfig are fields of a KubeProxyConfiguration.
type KubeProxyConfig map[string]any

// StartKubeProxy starts a real kube-proxy on the node in a mode: "iptables", "ipvs" or "nftables". Fields in more
// override the lab's defaults. Config.KubeProxy must be set.
func (n *Node) StartKubeProxy(ctx context.Context, mode string, more KubeProxyConfig) (*process.Process, error) {
	argv, err := n.KubeProxyArgv(ctx, mode, more)
	if err != nil {
		return nil, err
	}
	p, err := n.Start(ctx, "kube-proxy", host.Cmd{Argv: argv})
	if err != nil {
		return nil, err
	}
	n.c.watch(p)
	return p, nil
}

// KubeProxyArgv writes the configuration and returns the command that runs kube-proxy with it.
func (n *Node) KubeProxyArgv(ctx context.Context, mode string, more KubeProxyConfig) ([]string, error) {
	kubeconfig, err := n.c.kubeProxyKubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	config := KubeProxyConfig{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"clientConnection":   map[string]any{"kubeconfig": kubeconfig},
		"mode":               mode,
		"hostnameOverride":   n.Name,
		"metricsBindAddress": KubeProxyMetrics.String(),
		"detectLocalMode":    "ClusterCIDR",
		"clusterCIDR":        podRange.String(),
		// The size of conntrack's table belongs to the initial network namespace.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
	maps.Copy(config, more)
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("write the configuration of kube-proxy on %s: %w", n.Name, err)
	}
	file := filepath.Join(n.c.Dir, fmt.Sprintf("%s-kube-proxy-%d.yaml", n.Name, time.Now().UnixNano()))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of kube-proxy on %s: %w", n.Name, err)
	}
	return []string{n.c.build.Path("kube-proxy"), "--config", file, "-v=2"}, nil
}

// kubeProxyKubeconfig creates the account of a cluster's kube-proxy, and its credentials.
func (c *Cluster) kubeProxyKubeconfig(ctx context.Context) (string, error) {
	const namespace, name = "kube-system", "kube-proxy"
	_, err := c.Kube.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("make the account of kube-proxy: %w", err)
	}
	_, err = c.Kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "lab:kube-proxy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("make the account of kube-proxy: %w", err)
	}
	return c.cp.ServiceAccountKubeconfig(ctx, namespace, name)
}
