package controlplane

import (
	"path/filepath"
	"strings"
	"time"
)

const etcdURL = "http://127.0.0.1:2379" // in a namespace of its own

// controllers are the controllers a lab uses. The lab's own kubelets replace the workload controllers.
var controllers = []string{
	"endpointslice-controller",
	"node-lifecycle-controller",
	"namespace-controller",
	"serviceaccount-controller",
	"garbage-collector-controller",
	"pod-garbage-collector-controller",
	"root-ca-certificate-publisher-controller",
	"clusterrole-aggregation-controller",
}

func (cp *ControlPlane) file(name string) string { return filepath.Join(cp.cfg.Dir, name) }

func (cp *ControlPlane) etcdFlags() []string {
	return []string{
		"--name=lab",
		"--data-dir=" + cp.file("etcd"),
		"--listen-client-urls=" + etcdURL,
		"--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=lab=http://127.0.0.1:2380",
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func (cp *ControlPlane) apiserverFlags() []string {
	var services []string
	for _, p := range cp.cfg.Services {
		services = append(services, p.String())
	}
	flags := []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=" + cp.cfg.Address.String(),
		"--advertise-address=" + cp.cfg.Address.String(),
		"--secure-port=6443",
		"--tls-cert-file=" + cp.file(certFile),
		"--tls-private-key-file=" + cp.file(keyFile),
		"--authorization-mode=Node,RBAC",
		"--anonymous-auth=false",
		"--token-auth-file=" + cp.file(tokensFile),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + cp.file(saPubFile),
		"--service-account-signing-key-file=" + cp.file(saKeyFile),
		"--service-cluster-ip-range=" + strings.Join(services, ","),
		"--allow-privileged=true",
		"--enable-priority-and-fairness=false",
		"--profiling=false",
	}
	flags = append(flags, cp.cfg.APIServer...)
	if !cp.cfg.Kubelets {
		return append(flags, "--endpoint-reconciler-type=none")
	}
	return append(flags,
		"--endpoint-reconciler-type=lease", // Pods reach the API server through Service kubernetes
		"--client-ca-file="+cp.file(caFile),
		"--kubelet-client-certificate="+cp.file(kubeletClientCert),
		"--kubelet-client-key="+cp.file(kubeletClientKey),
		"--kubelet-preferred-address-types=InternalIP",
		"--enable-admission-plugins=NodeRestriction",
	)
}

func (cp *ControlPlane) controllerFlags() []string {
	run := controllers
	if cp.cfg.Kubelets {
		run = []string{"*"}
	}
	monitor := time.Second
	if cp.cfg.Heartbeat > 0 {
		monitor = cp.cfg.Heartbeat / 2
	}
	return []string{
		"--kubeconfig=" + cp.Kubeconfig(),
		"--controllers=" + strings.Join(run, ","),
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--cert-dir=" + cp.file("kube-controller-manager"),
		"--root-ca-file=" + cp.file(caFile),
		"--node-monitor-period=" + monitor.String(),
		"--node-monitor-grace-period=" + cp.cfg.NodeGrace.String(),
		"--node-startup-grace-period=20s",
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		"--profiling=false",
	}
}

func (cp *ControlPlane) schedulerFlags() []string {
	return []string{
		"--kubeconfig=" + cp.Kubeconfig(),
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--cert-dir=" + cp.file("kube-scheduler"),
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		"--profiling=false",
	}
}
