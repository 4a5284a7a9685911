package lab

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/lab/kubelet"
	"github.com/ironlb/ironlb/test/lab/probe"
)

// PodSpec describes the Pod that AddPod creates.
type PodSpec struct {
	Namespace string // empty: default
	Name      string
	Node      *Node
	Labels    map[string]string
	Grace     time.Duration // for which a deleted Pod continues to serve, in seconds; 0: not at all
}

// NewPod returns the object that AddPod creates: a Pod of the lab.
func NewPod(spec PodSpec) *corev1.Pod {
	if spec.Namespace == "" {
		spec.Namespace = metav1.NamespaceDefault
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: spec.Namespace, Name: spec.Name, Labels: spec.Labels},
		Spec: corev1.PodSpec{
			NodeName:                     spec.Node.Name,
			AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{
				Name: "server", Image: "lab.ironlb.io/labpod",
				Ports: []corev1.ContainerPort{
					{Name: "http", ContainerPort: probe.PortHTTP, Protocol: corev1.ProtocolTCP},
					{Name: "udp", ContainerPort: probe.PortUDP, Protocol: corev1.ProtocolUDP},
					{Name: "stream", ContainerPort: probe.PortStream, Protocol: corev1.ProtocolTCP},
					{Name: "echo", ContainerPort: probe.PortEcho, Protocol: corev1.ProtocolTCP},
				},
			}},
		},
	}
	if spec.Grace > 0 {
		pod.Annotations = map[string]string{kubelet.AnnotationGrace: spec.Grace.String()}
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(spec.Grace.Seconds()))
	}
	return pod
}

// AddPod creates a Pod and waits until it is Ready.
func (c *Cluster) AddPod(ctx context.Context, spec PodSpec) (*corev1.Pod, error) {
	pod := NewPod(spec)
	if err := c.WaitNamespace(ctx, pod.Namespace); err != nil {
		return nil, err
	}
	pod, err := c.Kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make Pod %s: %w", spec.Name, err)
	}
	return c.WaitPod(ctx, pod.Namespace, pod.Name, true)
}

// WaitNamespace waits until Pods may be created in a namespace: its default ServiceAccount exists.
func (c *Cluster) WaitNamespace(ctx context.Context, namespace string) error {
	return c.Eventually(ctx, 30*time.Second, "the default ServiceAccount of "+namespace, func(ctx context.Context) error {
		_, err := c.Kube.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// agentLimit is the timeout for actions of a node's agent, also in an emulated guest with other nodes.
const agentLimit = 3 * time.Minute

// WaitPod waits until a Pod is Ready, or not Ready.
func (c *Cluster) WaitPod(ctx context.Context, namespace, name string, ready bool) (*corev1.Pod, error) {
	var pod *corev1.Pod
	what := fmt.Sprintf("Pod %s/%s to be ready: %t", namespace, name, ready)
	err := c.Eventually(ctx, agentLimit, what, func(ctx context.Context) (err error) {
		if pod, err = c.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, cond := range pod.Status.Conditions {
			if cond.Type == corev1.PodReady && (cond.Status == corev1.ConditionTrue) == ready {
				return nil
			}
		}
		return errors.New("it is not")
	})
	return pod, err
}

// SetPodReady makes the node's agent report the Pod as ready or not. The Pod continues to serve in both cases.
func (c *Cluster) SetPodReady(ctx context.Context, namespace, name string, ready bool) error {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if err := c.annotate(ctx, key, kubelet.AnnotationReady, strconv.FormatBool(ready)); err != nil {
		return err
	}
	_, err := c.WaitPod(ctx, namespace, name, ready)
	return err
}

// RemovePod deletes a Pod and waits until it is gone.
func (c *Cluster) RemovePod(ctx context.Context, namespace, name string) error {
	_, err := c.Kubectl(ctx, "delete", "pod", "-n", namespace, name, "--timeout=60s")
	return err
}

// PodMachine returns the namespace of a running Pod, to run commands in.
func (c *Cluster) PodMachine(namespace, name string) (*Machine, error) {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	for _, b := range c.pods.sandboxes {
		if b.pod.Namespace == namespace && b.pod.Name == name {
			return b.machine(c), nil
		}
	}
	return nil, fmt.Errorf("find Pod %s/%s: it does not run", namespace, name)
}
