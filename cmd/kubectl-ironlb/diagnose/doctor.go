package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Checks of a node in addition to the conditions of its SpeakerStatus, whose types are the names of those.
const (
	CheckReporting    = "Reporting"
	CheckDataPlane    = "DataPlaneProgrammed"
	CheckTunnels      = "Tunnels"
	CheckReturnRoutes = "ReturnRoutes"
	CheckHeartbeats   = "Heartbeats"
	CheckReachability = "Reachability"
	CheckMTU          = "MTU"
	CheckClock        = "Clock"
)

// Reasons of these checks that no condition has.
const (
	ReasonPodNotReady  = "PodNotReady"
	ReasonNoHeartbeats = "NoHeartbeats"
	ReasonMTUDiffers   = "MTUDiffers"
	ReasonClockDiffers = "ClockDiffers"
)

// advisory are the conditions without which everything works, at the time.
var advisory = []string{"DeadlineScheduling", "OneInterfacePerSubnet", "NoStall", "SchedulersAvailable"}

// proxiesCompatible is the condition whose reason is an advice, if it is another one while the condition is True.
const proxiesCompatible, noConflict = "ServiceProxiesCompatible", "NoConflict"

// Doctor makes every check of the named nodes, of all without names. A Group's kind is the check, and its objects are
// the nodes that share the outcome. The worst outcomes come first, then they are sorted by check. A node whose speaker
// does not report gets no other check.
func (c *Cluster) Doctor(names []string) []Group {
	g := newGroups(c)
	var reporting []*v1alpha1.SpeakerStatus
	for _, name := range c.WithSpeaker() {
		if s := c.speaker(name); g.reporting(name, s) {
			reporting = append(reporting, s)
		}
	}
	for _, s := range reporting {
		g.conditions(s)
		g.forwarding(s)
		g.reachability(s)
		g.heartbeats(s, reporting)
		g.clock(s)
	}
	g.mtus(reporting)
	for i := range g.all {
		one := &g.all[i]
		one.Objects = slices.DeleteFunc(one.Objects, func(node string) bool {
			return len(names) > 0 && !slices.Contains(names, node) || one.State == OK && g.fails(one.Kind, node)
		})
	}
	g.all = slices.DeleteFunc(g.all, func(one Group) bool { return len(one.Objects) == 0 })
	if c.Controller != "" {
		g.add("Cluster", Problem, ReasonNotReady, c.Controller, "ironlb-ccm")
	}
	if c.Daemons != "" {
		g.add("Cluster", Problem, ReasonNotReady, c.Daemons, "ironlb-speaker")
	}
	g.unread("Nodes", "SpeakerStatuses", "Pods")
	slices.SortStableFunc(g.all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(severity(a.State), severity(b.State)), cmp.Compare(a.Kind, b.Kind))
	})
	return g.all
}

// fails reports whether a check of a node has another outcome than OK.
func (g *groups) fails(check, node string) bool {
	return slices.ContainsFunc(g.all, func(one Group) bool {
		return one.Kind == check && one.State != OK && slices.Contains(one.Objects, node)
	})
}

// WithSpeaker returns the nodes that should have a speaker: those with a report or a Pod of it. While IronLB has no Pod,
// speakers are run in another way, on all nodes.
func (c *Cluster) WithSpeaker() []string {
	names := map[string]bool{}
	for i := range c.Speakers {
		names[c.Speakers[i].Name] = true
	}
	for i := range c.Pods {
		names[c.Pods[i].Spec.NodeName] = true
	}
	for i := range c.Nodes {
		if len(c.Pods) == 0 && c.Unread["Pods"] == "" {
			names[c.Nodes[i].Name] = true
		}
	}
	delete(names, "") // a Pod that no node has yet
	return slices.Sorted(maps.Keys(names))
}

// reporting checks whether the last report of a node, nil for none, is current.
func (g *groups) reporting(name string, s *v1alpha1.SpeakerStatus) (current bool) {
	pod := g.podProblem(name)
	switch absence := g.absence[name]; {
	case s == nil:
		g.add(CheckReporting, Problem, ReasonNotReported, "the speaker has not reported: "+cmp.Or(pod,
			"see whether it runs, reaches the API server (chart value apiServer.host) and may write speakerstatuses.ironlb.io"), name)
	case absence == v1alpha1.AbsenceStopped:
		g.add(CheckReporting, Problem, string(absence), "the speaker has ended: "+cmp.Or(pod, "start it"), name)
	case absence != "":
		g.add(CheckReporting, Problem, string(absence), "the other speakers do not receive this one, or the node is down: "+
			cmp.Or(pod, "start the node and its speaker; if both run, "+heartbeatsRemedy), name)
	case pod != "":
		g.add(CheckReporting, Problem, ReasonPodNotReady, pod, name)
		return true
	default:
		g.add(CheckReporting, OK, "", "the speaker reports", name)
		return true
	}
	return false
}

// podProblem returns why the Pod of a node's speaker is not ready; empty if it is, or if there is none.
func (g *groups) podProblem(node string) string {
	i := slices.IndexFunc(g.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		return ""
	}
	pod := &g.Pods[i]
	if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		return ""
	}
	text := fmt.Sprintf("Pod %s/%s is not ready", pod.Namespace, pod.Name)
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil {
			text += fmt.Sprintf("; container %s is waiting: %s", c.Name, strings.TrimSuffix(w.Reason+": "+w.Message, ": "))
		}
		if t := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated); t != nil && t.ExitCode != 0 {
			text += fmt.Sprintf("; container %s ended with code %d: %s", c.Name, t.ExitCode, cmp.Or(strings.TrimSpace(t.Message), "see its log"))
		}
	}
	return text
}

// conditions adds those of the SpeakerStatus.
func (g *groups) conditions(s *v1alpha1.SpeakerStatus) {
	for _, c := range s.Status.Conditions {
		g.add(c.Type, stateOf(c), c.Reason, c.Message, s.Name)
	}
}

func stateOf(c metav1.Condition) State {
	switch {
	case c.Status == metav1.ConditionUnknown:
		return Unknown
	case c.Status == metav1.ConditionFalse && slices.Contains(advisory, c.Type), c.Type == proxiesCompatible && c.Status == metav1.ConditionTrue && c.Reason != noConflict:
		return Warning
	case c.Status == metav1.ConditionFalse:
		return Problem
	}
	return OK
}

// forwarding adds whether the node forwards as planned, also through tunnels and by the return routes of pools.
func (g *groups) forwarding(s *v1alpha1.SpeakerStatus) {
	switch d := s.Status.DataPlane; {
	case d.Healthy:
		g.add(CheckDataPlane, OK, "", "the node is programmed as planned", s.Name)
	case !explained(d.Message, s.Status.Conditions):
		g.add(CheckDataPlane, Problem, d.Reason, d.Message, s.Name)
	}
	if t := s.Status.Tunnels; t != nil && !t.Available {
		g.add(CheckTunnels, Warning, "TunnelUnavailable", "ironlb.io/forwarding: direct has no effect on this node: "+t.Message, s.Name)
	} else if t != nil {
		g.add(CheckTunnels, OK, "", "the node can use tunnels", s.Name)
	}
	for _, r := range s.Status.ReturnRoutes {
		if r.InEffect {
			g.add(CheckReturnRoutes, OK, "", "the return routes of pools are in effect", s.Name)
		} else {
			g.add(CheckReturnRoutes, Problem, "NoReturnRoute", fmt.Sprintf("answers of pool %s (%s) do not leave by its router: %s", r.Pool, r.Family, r.Message), s.Name)
		}
	}
}

// explained reports whether conditions that are False contain all of a message.
func explained(message string, conditions []metav1.Condition) bool {
	for _, c := range conditions {
		for part := range strings.SplitSeq(c.Message, "; ") {
			if c.Status == metav1.ConditionFalse && part != "" {
				message = strings.ReplaceAll(message, part, "")
			}
		}
	}
	return strings.TrimSpace(message) == ""
}

// reachability adds the nodes that a node cannot reach, neither their speakers nor their kernels.
func (g *groups) reachability(s *v1alpha1.SpeakerStatus) {
	for _, u := range s.Status.Unreachable {
		if g.absence[u.Node] == "" {
			g.add(CheckReachability, Problem, "Unreachable", fmt.Sprintf("cannot reach node %s, neither its speaker nor its kernel: check the network between them", u.Node), s.Name)
		}
	}
	for _, other := range s.Status.WithoutWitness {
		g.add(CheckReachability, Warning, "WithoutWitness", "answers neither ICMP echo nor ARP, so only Kubernetes detects its death: permit ICMP echo from the nodes", other)
	}
	if s.Status.CutOff {
		g.add(CheckReachability, Problem, "CutOff", "most other nodes became unreachable at once, and no gateway answers: check the network of this node", s.Name)
	}
	g.add(CheckReachability, OK, "", "no node is unreachable", s.Name)
}

// heartbeatsRemedy is for speakers that do not receive others whose nodes are up.
const heartbeatsRemedy = "open UDP 7948 (failover.port) between the nodes, to unicast addresses and to the groups 224.0.0.254 and ff02::114, " +
	"and give all speakers the same keys, failover.port and failover.cluster"

// heartbeats adds which of the other speakers that report a speaker does not receive. Unreachable nodes are left out.
func (g *groups) heartbeats(s *v1alpha1.SpeakerStatus, others []*v1alpha1.SpeakerStatus) {
	received, lost := 0, []string{}
	members := map[string]*v1alpha1.MemberStatus{}
	for i := range s.Status.Members {
		members[s.Status.Members[i].Node] = &s.Status.Members[i]
	}
	for _, other := range others {
		m := members[other.Name]
		unreachable := slices.ContainsFunc(s.Status.Unreachable, func(u v1alpha1.UnreachableStatus) bool { return u.Node == other.Name })
		switch {
		case other.Name == s.Name, unreachable, m == nil && s.Partial(len(g.Speakers)):
		case m == nil, m.State == v1alpha1.MemberSilent:
			lost = append(lost, other.Name)
		case m.State == v1alpha1.MemberIsolated:
			received++
			g.add(CheckHeartbeats, Warning, string(m.State), fmt.Sprintf("receives node %s by another path only: check its port, VLAN and filters for UDP 7948", other.Name), s.Name)
		default:
			received++
		}
	}
	if len(lost) > 1 && received == 0 {
		g.add(CheckHeartbeats, Problem, ReasonNoHeartbeats, "receives no other speaker: "+heartbeatsRemedy, s.Name)
		lost = nil
	}
	for _, other := range lost {
		g.add(CheckHeartbeats, Problem, ReasonNoHeartbeats, fmt.Sprintf("does not receive the speaker of node %s: %s", other, heartbeatsRemedy), s.Name)
	}
	g.add(CheckHeartbeats, OK, "", "receives the other speakers", s.Name)
}

// clockMost is the accepted difference of clocks. A report takes a moment to be stored, and has the time in seconds.
const clockMost = 10 * time.Second

// clock compares the time that a speaker wrote into its report with that of the API server when it stored the report.
func (g *groups) clock(s *v1alpha1.SpeakerStatus) {
	i := slices.IndexFunc(s.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "ironlb-speaker" && m.Subresource == "status" && m.Time != nil
	})
	if i < 0 || s.Status.Updated == nil {
		return
	}
	ahead := s.Status.Updated.Sub(s.ManagedFields[i].Time.Time)
	if ahead.Abs() <= clockMost {
		g.add(CheckClock, OK, "", "the clock agrees with that of the API server", s.Name)
		return
	}
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	g.add(CheckClock, Warning, ReasonClockDiffers, fmt.Sprintf("the clock was %v %s that of the API server at the last report: synchronize both by NTP", ahead.Abs(), direction), s.Name)
}

// mtus adds the interfaces whose MTU differs from that of most nodes in the subnet, and likewise the tunnels. Of two
// MTUs that equally many nodes have, the lower one counts.
func (g *groups) mtus(all []*v1alpha1.SpeakerStatus) {
	type use struct {
		node, device string
		mtu          int32
	}
	networks := map[string][]use{}
	for _, s := range all {
		for _, in := range s.Status.Interfaces {
			for _, subnet := range in.Subnets {
				networks["subnet "+subnet] = append(networks["subnet "+subnet], use{s.Name, in.Name, in.MTU})
			}
		}
		if t := s.Status.Tunnels; t != nil {
			networks["the tunnels"] = append(networks["the tunnels"], use{s.Name, "the tunnels", t.MTU})
		}
	}
	for _, network := range slices.Sorted(maps.Keys(networks)) {
		uses := slices.DeleteFunc(networks[network], func(u use) bool { return u.mtu == 0 }) // not known
		count, most := map[int32]int{}, int32(0)
		for _, u := range uses {
			count[u.mtu]++
		}
		for _, mtu := range slices.Sorted(maps.Keys(count)) {
			if count[mtu] > count[most] {
				most = mtu
			}
		}
		for _, u := range uses {
			if u.mtu != most {
				g.add(CheckMTU, Problem, ReasonMTUDiffers, fmt.Sprintf("the MTU of %s is %d, in %s that of most nodes is %d: larger packets get lost "+
					"between them; give the interfaces of all nodes one MTU", u.device, u.mtu, network, most), u.node)
			}
		}
	}
	for _, s := range all {
		g.add(CheckMTU, OK, "", "the MTU is that of the other nodes", s.Name)
	}
}
