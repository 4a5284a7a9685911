package connectivity

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const (
	// Namespace of the Pods and Services. It is also the name of the objects without a namespace.
	Namespace = "ironlb-connectivity-test"
	// Account of the Pods. A new namespace has its default one only after a while.
	Account = "client"
	// AnnotationRun has a random value of the run that created the object.
	AnnotationRun = "ironlb.io/connectivity-test-run"
	// Container of each Pod.
	Container = "echo"
	// program is in the image of the speakers.
	program = "ironlb-speaker"
	// Port of the Services, and of the server.
	Port, ServerPort = 80, 8080
)

// Names of the Pods with one of a kind.
const (
	Server = "server" // on the first node
	Client = "client" // on the first node, the only one that Restricted permits
	Other  = "other"  // on the first node
	Remote = "remote" // on the second node
)

// Scene is what a run creates.
type Scene struct {
	Image string
	Pool  string // empty: any
	Class string
	Nodes []string
	Tests []Test
}

// Hosts reports whether there are clients in the network of the nodes.
func (s *Scene) Hosts() bool {
	return slices.ContainsFunc(s.Tests, func(t Test) bool { return t.Hosts })
}

// Has reports whether one of the tests runs.
func (s *Scene) Has(names ...Name) bool {
	return slices.ContainsFunc(s.Tests, func(t Test) bool { return slices.Contains(names, t.Name) })
}

// Namespace returns the namespace. Pods in the network of a node require the Pod Security level privileged, the others
// meet the strictest one.
func (s *Scene) Namespace() *corev1.Namespace {
	level, labels := "restricted", maps.Clone(ours)
	if s.Hosts() {
		level = "privileged"
	}
	for _, mode := range []string{"enforce", "audit", "warn"} {
		labels["pod-security.kubernetes.io/"+mode] = level
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace, Labels: labels}}
}

// ServiceAccount returns that of the Pods.
func (s *Scene) ServiceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Account, Labels: ours}}
}

// Pods returns the Pods.
func (s *Scene) Pods() []*corev1.Pod {
	pods := []*corev1.Pod{s.pod(Server, s.Nodes[0], false), s.pod(Client, s.Nodes[0], false)}
	if s.Has(SourceRanges) {
		pods = append(pods, s.pod(Other, s.Nodes[0], false))
	}
	if len(s.Nodes) > 1 {
		pods = append(pods, s.pod(Remote, s.Nodes[1], false))
	}
	if s.Hosts() {
		for i, node := range s.Nodes {
			pods = append(pods, s.pod(fmt.Sprintf("host-%d", i+1), node, true))
		}
	}
	return pods
}

func (s *Scene) pod(name, node string, host bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: maps.Clone(ours)}}
	p.Labels["app"] = name
	p.Spec = corev1.PodSpec{
		NodeName: node, HostNetwork: host, ServiceAccountName: Account, AutomountServiceAccountToken: ptr.To(false),
		EnableServiceLinks: ptr.To(false), TerminationGracePeriodSeconds: ptr.To(int64(1)),
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(65534)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{
			Name: Container, Image: s.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{program, "idle"},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}},
	}
	if name == Server {
		c := &p.Spec.Containers[0]
		c.Command = []string{program, "echo", "serve", fmt.Sprintf("--port=%d", ServerPort)}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1,
			ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(ServerPort)}}}
	}
	return p
}

// Services returns the Services. Only the client's addresses may use the restricted one.
func (s *Scene) Services(client []netip.Addr) (out []*corev1.Service) {
	for _, name := range []string{Web, Restricted, LocalOnly} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: maps.Clone(ours)}}
		svc.Labels["app"] = name
		svc.Spec = corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack),
			Selector: map[string]string{"app": Server},
			Ports:    []corev1.ServicePort{{Name: "http", Port: Port, TargetPort: intstr.FromInt32(ServerPort)}},
		}
		if s.Class != "" {
			svc.Spec.LoadBalancerClass = &s.Class
		}
		if s.Pool != "" {
			svc.Annotations = map[string]string{v1alpha1.AnnotationPool: s.Pool}
		}
		switch name {
		case Restricted:
			for _, a := range client {
				svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, netip.PrefixFrom(a, a.BitLen()).String())
			}
			if !s.Has(SourceRanges) {
				continue
			}
		case LocalOnly:
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			if !s.Has(Local, FromHere) {
				continue
			}
		}
		out = append(out, svc)
	}
	return out
}

// Preferring returns an L2Advertisement that prefers a node, for the VirtualIP of Service web alone: a rebalance then
// moves only that. It permits no node or interface that the others do not.
func Preferring(c *diagnose.Cluster, svc *corev1.Service, node *corev1.Node) (*v1alpha1.L2Advertisement, error) {
	host := node.Labels[corev1.LabelHostname]
	if host == "" {
		return nil, fmt.Errorf("no label %s on Node %s, which would select it", corev1.LabelHostname, node.Name)
	}
	selector := metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: host}}
	ad := &v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: Namespace, Labels: ours}}
	ad.Spec = v1alpha1.L2AdvertisementSpec{
		ServiceSelectors: []metav1.LabelSelector{{MatchLabels: svc.Labels}}, NodeSelectors: []metav1.LabelSelector{selector},
		PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{{Weight: 100, Preference: selector}},
	}
	records, _ := v1alpha1.RecordsOf(svc)
	bySubnet := false
	for _, r := range records {
		if !slices.Contains(ad.Spec.IPAddressPools, r.Pool) {
			ad.Spec.IPAddressPools = append(ad.Spec.IPAddressPools, r.Pool)
		}
		for i := range c.L2 {
			selection, _ := advertisement.OfL2(&c.L2[i]) // its condition has the error
			if !selection.SelectsPool(r.Pool, labelsOf(c, r.Pool)) || !selection.SelectsService(svc.Labels) || !selection.SelectsNode(node) {
				continue
			}
			bySubnet = bySubnet || len(selection.Interfaces) == 0
			for _, name := range selection.Interfaces {
				if !slices.Contains(ad.Spec.Interfaces, name) {
					ad.Spec.Interfaces = append(ad.Spec.Interfaces, name)
				}
			}
		}
	}
	if bySubnet { // then the others have no effect on what this one may add
		ad.Spec.Interfaces = nil
	}
	return ad, nil
}

func labelsOf(c *diagnose.Cluster, pool string) map[string]string {
	for i := range c.Pools {
		if c.Pools[i].Name == pool {
			return c.Pools[i].Labels
		}
	}
	return nil
}
