package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/process"
)

// metallb is MetalLB in L2 mode, with kube-proxy (nftables). Its programs run as processes, with the flags, accounts
// and rights of its own manifest.
type metallb struct {
	services
	b                 *bench
	speakers, proxies map[*lab.Node]*process.Process
	ending            map[*lab.Node]bool // speakers that received SIGTERM
}

const (
	metallbName       = "metallb"
	metallbController = "metallb-controller" // programs, and the account of each without the prefix
	metallbSpeaker    = "metallb-speaker"
	metallbNamespace  = "metallb-system"
	metallbManifest   = "config/manifests/metallb-native.yaml" // in its sources
	metallbReady      = "http://127.0.0.1:17472/readyz"
	kubeProxyReady    = "http://127.0.0.1:10256/healthz"

	// As in its DaemonSet.
	metallbLabels  = "app=metallb,component=speaker"
	metallbKeyFile = "secretkey"
)

// metallbObjects are a pool of both families, announced by the candidates on the LAN.
const metallbObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: bench, namespace: metallb-system}
spec: {addresses: [%q, %q]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: bench, namespace: metallb-system}
spec:
  ipAddressPools: [bench]
  interfaces: [eth0]
  nodeSelectors:
  - matchExpressions:
    - {key: kubernetes.io/hostname, operator: In, values: [%s]}
`

// metallbPrograms returns the programs that the lab builds for it.
func metallbPrograms() []string { return []string{metallbController, metallbSpeaker} }

func (m *metallb) start(ctx context.Context) error {
	m.speakers, m.proxies = map[*lab.Node]*process.Process{}, map[*lab.Node]*process.Process{}
	m.ending = map[*lab.Node]bool{}
	if err := m.install(ctx); err != nil {
		return fmt.Errorf("install MetalLB: %w", err)
	}
	for _, n := range m.b.runs {
		if err := m.startOn(ctx, n); err != nil {
			return err
		}
	}
	return m.make(ctx)
}

// install applies its manifest, without the objects that would run as Pods, and starts its controller.
func (m *metallb) install(ctx context.Context) error {
	c := m.b.c
	root, err := c.Tools().MetalLB()
	if err != nil {
		return err
	}
	docs, err := manifest.Load(root, metallbManifest)
	if err != nil {
		return err
	}
	if err := c.ApplyYAML(ctx, docs.Accounts().String()); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"); err != nil {
		return err
	}
	if err := c.WaitNamespace(ctx, metallbNamespace); err != nil {
		return err
	}
	if err := os.MkdirAll(m.secret(), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.secret(), metallbKeyFile), []byte(rand.Text()), 0o600); err != nil {
		return err
	}
	if err := m.pod(ctx, "controller", "component=controller", c.Management.Addr.String()); err != nil {
		return err
	}
	for _, n := range m.b.runs {
		if err := m.pod(ctx, speakerPod(n), "component=speaker", n.Addr.String()); err != nil {
			return err
		}
	}
	kubeconfig, err := c.AccountKubeconfig(ctx, metallbNamespace, "controller")
	if err != nil {
		return err
	}
	_, err = c.Management.Start(ctx, metallbController, host.Cmd{Argv: []string{
		c.Program(metallbController), "--kubeconfig", kubeconfig, "--namespace", metallbNamespace,
		"--pod-name", "controller", "--port", "0", "--webhook-mode", "disabled",
		"--disable-cert-rotation", "--log-level", "info"}})
	if err != nil {
		return err
	}
	names := strings.Join(m.b.candidateNames(), ", ")
	return c.ApplyYAML(ctx, fmt.Sprintf(metallbObjects, lab.FreeRange, lab.FreeRange6, names))
}

// secret returns the folder of the speakers' shared key.
func (m *metallb) secret() string { return filepath.Join(m.b.c.Dir, "metallb-memberlist") }

func speakerPod(n *lab.Node) string { return "speaker-" + n.Name }

// pod creates the object of the Pod of one of its programs: the program reads its own object, and memberlist uses the
// addresses of the speakers' Pods. It is bound to no node, so nothing runs it.
func (m *metallb) pod(ctx context.Context, name, component, addr string) error {
	key, value, _ := strings.Cut(component, "=")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metallbNamespace, Name: name, Labels: map[string]string{"app": "metallb", key: value},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "process", Image: "localhost/none"}}},
	}
	pods := m.b.c.Kube.CoreV1().Pods(metallbNamespace)
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err == nil {
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, addr, []corev1.PodIP{{IP: addr}}
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make Pod %s: %w", name, err)
	}
	return nil
}

// startOn starts the programs that are not running on the node.
func (m *metallb) startOn(ctx context.Context, n *lab.Node) (err error) {
	if m.ending[n] {
		delete(m.ending, n)
		if err := m.speakers[n].Stop(10 * time.Second); err != nil {
			return err
		}
	}
	if p := m.proxies[n]; p == nil || !p.Running() {
		var ranges []string
		for _, r := range lab.PodRanges {
			ranges = append(ranges, r.String())
		}
		argv, err := n.KubeProxyArgv(ctx, "nftables", lab.KubeProxyConfig{"clusterCIDR": strings.Join(ranges, ",")})
		if err != nil {
			return err
		}
		if m.proxies[n], err = n.Start(ctx, "kube-proxy", host.Cmd{Argv: argv}); err != nil {
			return err
		}
	}
	if p := m.speakers[n]; p != nil && p.Running() {
		return nil
	}
	kubeconfig, err := m.b.c.AccountKubeconfig(ctx, metallbNamespace, "speaker")
	if err != nil {
		return err
	}
	m.speakers[n], err = n.Start(ctx, metallbSpeaker, host.Cmd{Argv: []string{
		m.b.c.Program(metallbSpeaker), "--kubeconfig", kubeconfig, "--namespace", metallbNamespace,
		"--node-name", n.Name, "--pod-name", speakerPod(n), "--ml-bindaddr", n.Addr.String(),
		"--ml-labels", metallbLabels, "--ml-secret-key-path", m.secret(), "--port", "0", "--log-level", "info"}})
	return err
}

func (m *metallb) stop(context.Context) error {
	var errs []error
	for _, n := range m.b.runs {
		for _, p := range []*process.Process{m.speakers[n], m.proxies[n]} {
			if p != nil {
				errs = append(errs, p.Kill())
			}
		}
	}
	return errors.Join(errs...)
}

func (m *metallb) signal(n *lab.Node, s syscall.Signal) error {
	switch s {
	case syscall.SIGKILL:
		return m.speakers[n].Kill()
	case syscall.SIGTERM:
		m.ending[n] = true
	}
	return m.speakers[n].Signal(s)
}

// ready: both programs answer, and the speaker's memberlist contains all others.
func (m *metallb) ready(ctx context.Context, n *lab.Node) error {
	for _, url := range []string{kubeProxyReady, metallbReady} {
		if _, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", url); err != nil {
			return err
		}
	}
	log, err := os.ReadFile(m.speakers[n].Log)
	if err != nil {
		return err
	}
	joined := members(log)
	for _, other := range m.b.runs {
		if other != n && !joined[other.Name] {
			return fmt.Errorf("its memberlist lacks %s", other.Name)
		}
	}
	return nil
}

// members returns the nodes in a speaker's memberlist, from its log.
func members(log []byte) map[string]bool {
	in := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(log)); lines.Scan(); {
		var line struct {
			Event string `json:"node event"`
			Node  string `json:"node name"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Event != "" {
			in[line.Node] = line.Event != "NodeLeave"
		}
	}
	return in
}

func (m *metallb) has(string) bool { return true }
