// Package metallb runs MetalLB in L2 mode in a lab without Kubelets. Its programs run as processes, with the flags,
// accounts and rights of its own manifest, memberlist included. Its webhooks, which only validate objects, are off.
package metallb

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
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Names of the programs, as the lab builds them; the account of each is its name without the prefix.
const (
	Controller = "metallb-controller"
	Speaker    = "metallb-speaker"
)

const (
	namespace = "metallb-system"
	file      = "config/manifests/metallb-native.yaml" // in its sources
	ready     = "http://127.0.0.1:17472/readyz"
	stopGrace = 20 * time.Second

	// As in its DaemonSet.
	labels  = "app=metallb,component=speaker"
	keyFile = "secretkey"
)

// objects are a pool and its announcement on the LAN by some nodes. The interface is named because the default list of
// excluded ones is a file in /etc.
const objects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: bench, namespace: metallb-system}
spec: {addresses: [%s]}
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

// Programs returns the programs for Config.Programs of the lab.
func Programs() []string { return []string{Controller, Speaker} }

// Config of a MetalLB.
type Config struct {
	Nodes []*lab.Node // with a speaker
	// Announcers are the names of the nodes that announce addresses.
	Announcers []string
	Pool       []string // ranges of addresses
	// Objects are the manifests of its configuration; empty: Pool, announced on the LAN by Announcers.
	Objects string
	Class   string // its --lb-class; empty: Services without one
}

// MetalLB is its controller on the lab's management machine and a speaker on each node.
type MetalLB struct {
	c          *lab.Cluster
	cfg        Config
	controller *process.Process
	speakers   map[*lab.Node]*process.Process
}

// New returns a MetalLB. It changes nothing.
func New(c *lab.Cluster, cfg Config) *MetalLB {
	return &MetalLB{c: c, cfg: cfg, speakers: map[*lab.Node]*process.Process{}}
}

// Install applies its manifest, without the objects that would run as Pods, and its configuration.
func (m *MetalLB) Install(ctx context.Context) error {
	if err := m.applyManifest(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(m.secret(), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.secret(), keyFile), []byte(rand.Text()), 0o600); err != nil {
		return err
	}
	if err := m.CreatePods(ctx); err != nil {
		return err
	}
	if m.cfg.Objects != "" {
		return m.c.ApplyYAML(ctx, m.cfg.Objects)
	}
	var pool []string
	for _, r := range m.cfg.Pool {
		pool = append(pool, fmt.Sprintf("%q", r))
	}
	return m.c.ApplyYAML(ctx, fmt.Sprintf(objects, strings.Join(pool, ", "), strings.Join(m.cfg.Announcers, ", ")))
}

// CreatePods creates the objects of its Pods. They are not ready.
func (m *MetalLB) CreatePods(ctx context.Context) error {
	if err := m.pod(ctx, "controller", "component=controller", m.c.Management.Addr.String()); err != nil {
		return err
	}
	for _, n := range m.cfg.Nodes {
		if err := m.pod(ctx, speakerPod(n), "component=speaker", n.Addr.String()); err != nil {
			return err
		}
	}
	return nil
}

// StopController ends the controller, and deletes its Pod.
func (m *MetalLB) StopController(ctx context.Context) error {
	return errors.Join(m.controller.Stop(stopGrace), m.deletePod(ctx, "controller"))
}

// StopSpeakers ends the speakers, as the deletion of their DaemonSet does, and deletes their Pods.
func (m *MetalLB) StopSpeakers(ctx context.Context) error {
	var stops errgroup.Group
	for _, n := range m.cfg.Nodes {
		stops.Go(func() error { return errors.Join(m.speakers[n].Stop(stopGrace), m.deletePod(ctx, speakerPod(n))) })
	}
	return stops.Wait()
}

// SetReady sets the condition of the speakers' Pods.
func (m *MetalLB) SetReady(ctx context.Context) error {
	for _, n := range m.cfg.Nodes {
		pod, err := m.c.Kube.CoreV1().Pods(namespace).Get(ctx, speakerPod(n), metav1.GetOptions{})
		if err == nil {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			_, err = m.c.Kube.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("set Pod %s ready: %w", speakerPod(n), err)
		}
	}
	return nil
}

func (m *MetalLB) deletePod(ctx context.Context, name string) error {
	return m.c.Kube.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}

func (m *MetalLB) applyManifest(ctx context.Context) error {
	root, err := m.c.Tools().MetalLB()
	if err != nil {
		return err
	}
	docs, err := manifest.Load(root, file)
	if err != nil {
		return err
	}
	if err := m.c.ApplyYAML(ctx, docs.Accounts().String()); err != nil {
		return err
	}
	if _, err := m.c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"); err != nil {
		return err
	}
	return m.c.WaitNamespace(ctx, namespace)
}

// StartController starts the controller.
func (m *MetalLB) StartController(ctx context.Context) error {
	kubeconfig, err := m.c.AccountKubeconfig(ctx, namespace, "controller")
	if err != nil {
		return err
	}
	m.controller, err = m.c.Management.Start(ctx, Controller, host.Cmd{Argv: []string{
		m.c.Program(Controller), "--kubeconfig", kubeconfig, "--namespace", namespace,
		"--pod-name", "controller", "--port", "0", "--webhook-mode", "disabled",
		"--disable-cert-rotation", "--log-level", "info", "--lb-class", m.cfg.Class}})
	return err
}

// Controller returns the controller's process.
func (m *MetalLB) Controller() *process.Process { return m.controller }

// StartSpeaker starts the speaker of a node.
func (m *MetalLB) StartSpeaker(ctx context.Context, n *lab.Node) error {
	kubeconfig, err := m.c.AccountKubeconfig(ctx, namespace, "speaker")
	if err != nil {
		return err
	}
	m.speakers[n], err = n.Start(ctx, Speaker, host.Cmd{Argv: []string{
		m.c.Program(Speaker), "--kubeconfig", kubeconfig, "--namespace", namespace,
		"--node-name", n.Name, "--pod-name", speakerPod(n), "--ml-bindaddr", n.Addr.String(),
		"--ml-labels", labels, "--ml-secret-key-path", m.secret(), "--port", "0", "--log-level", "info",
		"--lb-class", m.cfg.Class}})
	return err
}

// Speaker returns the process of a node's speaker; nil if none was started.
func (m *MetalLB) Speaker(n *lab.Node) *process.Process { return m.speakers[n] }

// Kill ends all its processes.
func (m *MetalLB) Kill() error {
	var errs []error
	if m.controller != nil {
		errs = append(errs, m.controller.Kill())
	}
	for _, p := range m.speakers {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

// Ready returns nil if the node's speaker is ready and its memberlist contains the speakers of all other nodes.
func (m *MetalLB) Ready(ctx context.Context, n *lab.Node) error {
	if _, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", ready); err != nil {
		return err
	}
	log, err := os.ReadFile(m.speakers[n].Log)
	if err != nil {
		return err
	}
	joined := members(log)
	for _, other := range m.cfg.Nodes {
		if other != n && !joined[other.Name] {
			return fmt.Errorf("its memberlist lacks %s", other.Name)
		}
	}
	return nil
}

// secret returns the folder of the speakers' shared key.
func (m *MetalLB) secret() string { return filepath.Join(m.c.Dir, "metallb-memberlist") }

func speakerPod(n *lab.Node) string { return "speaker-" + n.Name }

// pod creates the object of the Pod of one of its programs: the program reads its own object, and memberlist uses the
// addresses of the speakers' Pods. It is bound to no node, so nothing runs it.
func (m *MetalLB) pod(ctx context.Context, name, component, addr string) error {
	key, value, _ := strings.Cut(component, "=")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "metallb", key: value}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "process", Image: "localhost/none"}}},
	}
	pods := m.c.Kube.CoreV1().Pods(namespace)
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
