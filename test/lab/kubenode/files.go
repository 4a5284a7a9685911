package kubenode

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// Paths as seen by every node. Each node has its own /var/lib.
const (
	files            = "/var/lib/lab"
	containerdFile   = "containerd.toml"
	kubeletFile      = "kubelet.yaml"
	credentialsFile  = "kubeconfig"
	clientCAFile     = "client-ca.crt"
	resolvFile       = "resolv.conf"
	networkDir       = "cni"
	containerdSocket = "/run/containerd/containerd.sock"
	networkPlugins   = "/usr/lib/cni" // of Debian's containernetworking-plugins
)

// writeFiles writes the configuration of the node's programs.
func (n *Node) writeFiles() error {
	dir := filepath.Join(n.cfg.Dir, files)
	if err := os.MkdirAll(filepath.Join(dir, networkDir), 0o755); err != nil {
		return err
	}
	credentials, err := os.ReadFile(n.cfg.Kubeconfig)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(n.cfg.ClientCA)
	if err != nil {
		return err
	}
	kubelet, err := yaml.Marshal(n.kubeletConfig())
	if err != nil {
		return err
	}
	network, err := json.MarshalIndent(n.networkConfig(), "", "  ")
	if err != nil {
		return err
	}
	for file, data := range map[string][]byte{
		containerdFile:                   []byte(n.containerdConfig()),
		kubeletFile:                      kubelet,
		credentialsFile:                  credentials,
		clientCAFile:                     ca,
		resolvFile:                       []byte("# the cluster's DNS server is the only one\n"),
		networkDir + "/10-pods.conflist": network,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// containerdConfig leaves out features that the lab's machine may lack: AppArmor, CAP_SYS_RESOURCE, file systems other
// than overlay.
func (n *Node) containerdConfig() string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = %q

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q

[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
`, containerdSocket, n.cfg.Sandbox, networkPlugins, filepath.Join(files, networkDir))
}

func (n *Node) kubeletConfig() map[string]any {
	return map[string]any{
		"apiVersion":                  "kubelet.config.k8s.io/v1beta1",
		"kind":                        "KubeletConfiguration",
		"containerRuntimeEndpoint":    "unix://" + containerdSocket,
		"cgroupDriver":                "cgroupfs",
		"cgroupRoot":                  "/" + n.cfg.Cgroup,
		"failCgroupV1":                false,
		"failSwapOn":                  false,
		"makeIPTablesUtilChains":      false,
		"oomScoreAdj":                 0,
		"resolvConf":                  filepath.Join(files, resolvFile),
		"clusterDNS":                  []string{n.cfg.DNS.String()},
		"clusterDomain":               "cluster.local",
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"evictionHard":                map[string]string{"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		"registryPullQPS":             0,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": filepath.Join(files, clientCAFile)},
		},
		"authorization": map[string]any{"mode": "Webhook"},
	}
}

func (n *Node) kubeletFlags() []string {
	var addresses []string
	for _, a := range n.cfg.Addresses {
		addresses = append(addresses, a.String())
	}
	return []string{
		"--config=" + filepath.Join(files, kubeletFile),
		"--kubeconfig=" + filepath.Join(files, credentialsFile),
		"--cert-dir=/var/lib/kubelet/pki",
		"--hostname-override=" + n.cfg.Name,
		"--node-ip=" + strings.Join(addresses, ","),
	}
}

// networkConfig gives each Pod a point-to-point link to its node, with addresses of the node's ranges.
func (n *Node) networkConfig() map[string]any {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, p := range n.cfg.PodCIDRs {
		ranges = append(ranges, []map[string]string{{"subnet": p.String()}})
		routes = append(routes, map[string]string{"dst": defaultRoute(p)})
	}
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []map[string]any{
			{"type": "ptp", "ipam": map[string]any{"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": "/run/cni-ipam"}},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}
}

func defaultRoute(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "0.0.0.0/0"
	}
	return "::/0"
}
