package diagnose

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/nodecheck"
	"github.com/ironlb/ironlb/speaker/view"
)

// patients is a healthy cluster of the nodes a, b and c.
func patients() *Cluster {
	c := &Cluster{Now: now, Unread: map[string]string{}}
	for _, name := range []string{"a", "b", "c"} {
		c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		s := v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}, Updated: ptr.To(ago(time.Hour)), Tunnels: &v1alpha1.TunnelsStatus{Available: true, MTU: 1450},
			Interfaces: []v1alpha1.InterfaceStatus{{Name: "eth0", Subnets: []string{"192.0.2.0/24", "2001:db8::/64"}, MTU: 1500}},
		}}
		s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "ironlb-speaker", Subresource: "status", Time: ptr.To(ago(time.Hour - time.Second))}}
		for _, other := range []string{"a", "b", "c"} {
			if other != name {
				s.Status.Members = append(s.Status.Members, v1alpha1.MemberStatus{Node: other, State: v1alpha1.MemberAlive})
			}
		}
		c.Speakers = append(c.Speakers, s)
		found(&c.Speakers[len(c.Speakers)-1], nodecheck.Facts{DataPlane: "ipvs", Kernel: "6.1.0"})
	}
	return c
}

// found gives a report the conditions that a speaker publishes for these facts.
func found(s *v1alpha1.SpeakerStatus, f nodecheck.Facts) {
	s.Status.Conditions = nil
	for _, r := range nodecheck.Evaluate(f) {
		status := metav1.ConditionFalse
		if r.True {
			status = metav1.ConditionTrue
		}
		s.Status.Conditions = append(s.Status.Conditions, conditionOf(r.Type, status, r.Reason, r.Message))
	}
}

func speakerPod(node string, status corev1.ContainerStatus) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: "ironlb-speaker-" + node}, Spec: corev1.PodSpec{NodeName: node}}
	status.Name = "ironlb-speaker"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	if status.Ready {
		ready.Status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{ready}
	return pod
}

// TestDoctor: each cause is named with its nodes, reason and remedy, and nothing else is.
func TestDoctor(t *testing.T) {
	parameter := errors.New("set sysctl net.ipv4.ip_forward=1 (run as root with /proc/sys writable, or set it on the node beforehand): read-only file system")
	const open = "open UDP 7948 (failover.port) between the nodes"
	for _, tt := range []struct {
		name  string
		cause func(c *Cluster)
		// want are the outcomes other than OK: state, check, nodes and reason, then words of the message.
		want  string
		words []string
	}{
		{"healthy", func(*Cluster) {}, "", nil},

		// What a speaker reports about its node.
		{"no IPVS", func(c *Cluster) {
			err := fmt.Errorf("%w: run modprobe ip_vs", ipvs.ErrNoModule)
			found(&c.Speakers[1], nodecheck.Facts{Kernel: "5.10.0", DataPlaneError: err})
			c.Speakers[1].Status.DataPlane = v1alpha1.DataPlaneStatus{Reason: "DataPlaneNotReady", Message: err.Error()}
		}, "Problem DataPlaneAvailable b: KernelLacksIPVS", []string{"modprobe ip_vs; the kernel is 5.10.0"}},
		{"a kernel parameter of two nodes", func(c *Cluster) {
			for _, i := range []int{0, 2} {
				found(&c.Speakers[i], nodecheck.Facts{Parameters: errors.Join(parameter, errors.New("set sysctl x"))})
				c.Speakers[i].Status.DataPlane = v1alpha1.DataPlaneStatus{Reason: "DataPlaneNotReady", Message: parameter.Error() + " set sysctl x"}
			}
		}, "Problem KernelParametersSet a, c: KernelParameterWrong", []string{"ip_forward=1 (run as root"}},
		{"a kernel parameter and more", func(c *Cluster) {
			found(&c.Speakers[0], nodecheck.Facts{Parameters: parameter})
			c.Speakers[0].Status.DataPlane = v1alpha1.DataPlaneStatus{Reason: "DataPlaneNotReady", Message: parameter.Error() + " 192.0.2.1 is already local"}
		}, "Problem DataPlaneProgrammed a: DataPlaneNotReady\nProblem KernelParametersSet a: KernelParameterWrong", []string{"is already local"}},
		{"a firewall", func(c *Cluster) {
			found(&c.Speakers[0], nodecheck.Facts{Firewalls: []nodecheck.Problem{{Reason: "FirewallDropsUnknown", Message: "chain inet fw drops: add a rule"}}})
		}, "Problem FirewallsCompatible a: FirewallDropsUnknown", []string{"add a rule"}},
		{"kube-proxy", func(c *Cluster) {
			for i := range c.Speakers {
				found(&c.Speakers[i], nodecheck.Facts{Ours: nodecheck.Situation{ServiceProxy: true}, Proxy: kubeproxy.Facts{Running: true, Mode: kubeproxy.IPTables}})
			}
		}, "Problem ServiceProxiesCompatible a, b, c: KubeProxyAlongsideServiceProxy", []string{"kube-proxy in mode iptables", "set serviceProxy: false"}},
		{"an advice about kube-proxy", func(c *Cluster) {
			found(&c.Speakers[0], nodecheck.Facts{Ours: nodecheck.Situation{Proxy: true, IPVS: true}, Proxy: kubeproxy.Facts{Running: true, Mode: kubeproxy.NFTables, Configured: true}})
		}, "Warning ServiceProxiesCompatible a: KubeProxyFlushesVirtualServers", []string{"dataplane: nftables"}},
		{"Calico", func(c *Cluster) {
			found(&c.Speakers[0], nodecheck.Facts{Ours: nodecheck.Situation{IPVS: true}, CalicoPolices: true})
		}, "Problem NetworkPolicyEnforced a: CalicoIgnoresIPVS", []string{"set dataplane: nftables"}},
		{"a proxy of ARP", func(c *Cluster) {
			found(&c.Speakers[0], nodecheck.Facts{Proxies: []view.Proxy{{MAC: "02:00:00:00:00:09", Interface: "eth0", Family: "ipv4"}}})
		}, "Problem NoProxyARP a: ProxyARP", []string{"02:00:00:00:00:09"}},
		{"real-time priority", func(c *Cluster) {
			found(&c.Speakers[0], nodecheck.Facts{NoDeadline: "operation not permitted: add CAP_SYS_NICE"})
		}, "Warning DeadlineScheduling a: NoDeadline", []string{"add CAP_SYS_NICE"}},
		{"rights", func(c *Cluster) {
			found(&c.Speakers[0], nodecheck.Facts{Refused: []string{"bgppeers is forbidden"}})
		}, "Problem APIAccess a: KindsRefused", []string{"bgppeers is forbidden", "apply the CRDs and the ClusterRole"}},
		{"tunnels", func(c *Cluster) {
			c.Speakers[0].Status.Tunnels = &v1alpha1.TunnelsStatus{Message: "no module vxlan: load it"}
		}, "Warning Tunnels a: TunnelUnavailable", []string{"direct has no effect", "load it"}},
		{"a return route", func(c *Cluster) {
			c.Speakers[0].Status.ReturnRoutes = []v1alpha1.ReturnRouteStatus{{Pool: "lan", Family: "IPv4", Message: "no route to 192.0.2.1"}}
		}, "Problem ReturnRoutes a: NoReturnRoute", []string{"pool lan (IPv4)", "no route to 192.0.2.1"}},

		// Between nodes.
		{"one MTU", func(c *Cluster) { c.Speakers[2].Status.Interfaces[0].MTU = 9000 },
			"Problem MTU c: MTUDiffers\nProblem MTU c: MTUDiffers", []string{"eth0 is 9000, in subnet 192.0.2.0/24 that of most nodes is 1500"}},
		{"MTU of the tunnels", func(c *Cluster) { c.Speakers[0].Status.Tunnels.MTU = 8950 },
			"Problem MTU a: MTUDiffers", []string{"the tunnels is 8950, in the tunnels that of most nodes is 1450"}},
		{"MTU of an earlier version", func(c *Cluster) { c.Speakers[2].Status.Interfaces[0].MTU, c.Speakers[2].Status.Tunnels.MTU = 0, 0 }, "", nil},
		{"a filter in one direction", func(c *Cluster) {
			c.Speakers[0].Status.Members[0].State, c.Speakers[2].Status.Members[1].State = v1alpha1.MemberSilent, v1alpha1.MemberSilent
			for i := range c.Speakers[1].Status.Members {
				c.Speakers[1].Status.Members[i].State = v1alpha1.MemberSilent
			}
		}, "Problem Heartbeats a, c: NoHeartbeats\nProblem Heartbeats b: NoHeartbeats", []string{"does not receive the speaker of node b: " + open, "receives no other speaker: " + open}},
		{"never received", func(c *Cluster) { c.Speakers[1].Status.Members = c.Speakers[1].Status.Members[:1] },
			"Problem Heartbeats b: NoHeartbeats", []string{"does not receive the speaker of node c"}},
		{"by another path", func(c *Cluster) { c.Speakers[0].Status.Members[0].State = v1alpha1.MemberIsolated },
			"Warning Heartbeats a: Isolated", []string{"receives node b by another path only"}},
		{"unreachable", func(c *Cluster) {
			c.Speakers[0].Status.Members[0].State, c.Speakers[1].Status.Members[0].State = v1alpha1.MemberSilent, v1alpha1.MemberSilent
			c.Speakers[0].Status.Unreachable = []v1alpha1.UnreachableStatus{{Node: "b"}}
			c.Speakers[1].Status.Unreachable = []v1alpha1.UnreachableStatus{{Node: "a"}}
		}, "Problem Reachability a: Unreachable\nProblem Reachability b: Unreachable", []string{"cannot reach node b", "cannot reach node a"}},
		{"cut off", func(c *Cluster) { c.Speakers[0].Status.CutOff = true }, "Problem Reachability a: CutOff", nil},
		{"no ICMP echo", func(c *Cluster) {
			c.Speakers[0].Status.WithoutWitness, c.Speakers[1].Status.WithoutWitness = []string{"c"}, []string{"c"}
		}, "Warning Reachability c: WithoutWitness", []string{"permit ICMP echo"}},
		{"a clock", func(c *Cluster) { c.Speakers[0].Status.Updated = ptr.To(ago(30 * time.Minute)) },
			"Warning Clock a: ClockDiffers", []string{"29m59s ahead of", "NTP"}},
		{"another clock", func(c *Cluster) { c.Speakers[0].Status.Updated = ptr.To(ago(2 * time.Hour)) },
			"Warning Clock a: ClockDiffers", []string{"1h0m1s behind"}},

		// Nodes that do not report.
		{"no report", func(c *Cluster) { c.Speakers = c.Speakers[:2] },
			"Problem Reporting c: NotReported", []string{"reaches the API server (chart value apiServer.host)"}},
		{"no report by a Pod that ends", func(c *Cluster) {
			c.Speakers = c.Speakers[:2]
			c.Pods = []corev1.Pod{speakerPod("c", corev1.ContainerStatus{
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1,
					Message: "kernel 5.4 is too old: boot Linux 5.9 or later"}},
			})}
		}, "Problem Reporting c: NotReported", []string{"is waiting: CrashLoopBackOff", "ended with code 1: kernel 5.4 is too old: boot Linux 5.9 or later"}},
		{"no speaker on a node", func(c *Cluster) {
			c.Speakers = c.Speakers[:2]
			c.Pods = []corev1.Pod{speakerPod("a", corev1.ContainerStatus{Ready: true}), speakerPod("b", corev1.ContainerStatus{Ready: true})}
		}, "", nil},
		{"a Pod that is not ready", func(c *Cluster) { c.Pods = []corev1.Pod{speakerPod("a", corev1.ContainerStatus{})} },
			"Problem Reporting a: PodNotReady", []string{"Pod ironlb-system/ironlb-speaker-a is not ready"}},
		{"stopped", func(c *Cluster) { c.Speakers[0].Status.Stopped = ptr.To(ago(time.Minute)) }, "Problem Reporting a: Stopped", []string{"start it"}},
		{"dead", func(c *Cluster) {
			c.Speakers[1].Status.Members[0].State, c.Speakers[2].Status.Members[0].State = v1alpha1.MemberSilent, v1alpha1.MemberSilent
			c.Speakers[1].Status.Unreachable = []v1alpha1.UnreachableStatus{{Node: "a"}}
		}, "Problem Reporting a: Silent", []string{"start the node and its speaker; if both run, " + open}},
		{"no rights to read Pods", func(c *Cluster) { c.Unread["Pods"] = "forbidden" }, "Unknown Cluster Pods: Unread", []string{"cannot be listed: forbidden"}},
		{"a Pod that no node takes", func(c *Cluster) { c.Daemons = "2 of 3 Pods are ready" }, "Problem Cluster ironlb-speaker: NotReady", []string{"2 of 3"}},
		{"no controller", func(c *Cluster) { c.Controller = "no replica is available" }, "Problem Cluster ironlb-ccm: NotReady", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := patients()
			tt.cause(c)
			var got []string
			text, passed, failed := "", map[string][]string{}, map[string][]string{}
			for _, g := range c.Doctor(nil) {
				if g.State == OK {
					passed[g.Kind] = append(passed[g.Kind], g.Objects...)
				} else {
					got = append(got, fmt.Sprintf("%s %s %s: %s", g.State, g.Kind, strings.Join(g.Objects, ", "), g.Reason))
					text += g.Message + "\n"
					failed[g.Kind] = append(failed[g.Kind], g.Objects...)
				}
			}
			if strings.Join(got, "\n") != tt.want {
				t.Errorf("got\n%s\nwant\n%s\n%s", strings.Join(got, "\n"), tt.want, text)
			}
			for check, nodes := range failed {
				if slices.ContainsFunc(nodes, func(node string) bool { return slices.Contains(passed[check], node) }) {
					t.Errorf("a node of %v both passes %s and does not: %v", nodes, check, passed[check])
				}
			}
			for _, words := range tt.words {
				if !strings.Contains(text, words) {
					t.Errorf("%q lacks %q", text, words)
				}
			}
		})
	}
}

// TestDoctorOfNodes: with names, only these nodes are checked, also against the others.
func TestDoctorOfNodes(t *testing.T) {
	c := patients()
	c.Speakers[0].Status.Interfaces[0].MTU, c.Speakers[1].Status.Interfaces[0].MTU = 9000, 1400
	c.Speakers[1].Status.DataPlane = v1alpha1.DataPlaneStatus{Reason: "DataPlaneNotReady", Message: "nft fails"}
	for _, g := range c.Doctor([]string{"a"}) {
		if !slices.Equal(g.Objects, []string{"a"}) || g.State != OK && g.Kind != CheckMTU {
			t.Errorf("%+v", g)
		}
	}
}

// The names of conditions here are those of the speakers.
func TestConditionsExist(t *testing.T) {
	for _, name := range append(advisory, proxiesCompatible) {
		if !slices.Contains(nodecheck.Types, name) {
			t.Errorf("no speaker publishes %s", name)
		}
	}
}
