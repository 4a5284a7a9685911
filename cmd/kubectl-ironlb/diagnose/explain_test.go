package diagnose

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.Time{Time: now.Add(-d)} }

func conditionOf(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// healthy is a cluster of two nodes in which Service default/web works, by ARP and by BGP.
func healthy() *Cluster {
	web := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	web.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}
	web.Status.Conditions = []metav1.Condition{
		conditionOf(v1alpha1.ConditionAllocated, metav1.ConditionTrue, "Allocated", "Allocated 192.0.2.10 from pool lan"),
		conditionOf(v1alpha1.ConditionAddresses, metav1.ConditionTrue, "Recorded", "192.0.2.10=lan"),
	}
	slice := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}}
	slice.AddressType, slice.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}}
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: ptr.To("b")}}
	lan := v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan"}}
	lan.Spec.Addresses, lan.Status.AssignedIPv4, lan.Status.AvailableIPv4 = []string{"192.0.2.10-192.0.2.11"}, 1, 1
	lan.Status.Conditions = []metav1.Condition{conditionOf("Ready", metav1.ConditionTrue, "Ready", "")}
	vip := v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.10"}}
	vip.Spec = v1alpha1.VirtualIPSpec{Addresses: []string{"192.0.2.10"}, Services: []v1alpha1.ServiceReference{{Namespace: "default", Name: "web"}}, Nodes: []string{"a", "b"}}
	vip.Status = v1alpha1.VirtualIPStatus{Node: "a", Interfaces: []string{"eth0"}, Since: ptr.To(ago(time.Minute)),
		Conditions: []metav1.Condition{conditionOf(v1alpha1.ConditionAnnounced, metav1.ConditionTrue, "Owner", "")}}
	c := &Cluster{
		Now: now, Settings: Settings{Scope: servicerecord.DefaultScope()}, Unread: map[string]string{},
		Services: []corev1.Service{web}, Slices: []discoveryv1.EndpointSlice{slice}, Pools: []v1alpha1.IPAddressPool{lan},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}},
		L2:         []v1alpha1.L2Advertisement{{ObjectMeta: metav1.ObjectMeta{Name: "lan"}}},
		BGP:        []v1alpha1.BGPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "routers"}}}, VirtualIPs: []v1alpha1.VirtualIP{vip},
	}
	for _, name := range []string{"a", "b"} {
		c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		other := map[string]string{"a": "b", "b": "a"}[name]
		c.Speakers = append(c.Speakers, v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}, Members: []v1alpha1.MemberStatus{{Node: other, State: v1alpha1.MemberAlive}},
			BGP: &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "tor", State: v1alpha1.SessionEstablished, Families: []corev1.IPFamily{corev1.IPv4Protocol}}}},
		}})
	}
	return c
}

// waiting makes Service default/web wait for an address.
func waiting(c *Cluster, reason, message string) {
	svc := &c.Services[0]
	svc.Status.LoadBalancer.Ingress = nil
	svc.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAllocated, metav1.ConditionFalse, reason, message)}
	c.VirtualIPs = nil
}

// other adds a Service that holds an address of pool lan.
func other(c *Cluster, addr string) {
	svc := *c.Services[0].DeepCopy()
	svc.Name, svc.Status.LoadBalancer.Ingress[0].IP = "other", addr
	svc.Status.Conditions[1].Message = addr + "=lan"
	c.Services = append(c.Services, svc)
}

func announced(c *Cluster, reason, message string) {
	c.VirtualIPs[0].Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAnnounced, metav1.ConditionFalse, reason, message)}
}

// For each cause, explain names it, its step and its remedy, and for a pool why it gives nothing. Cases of conditions
// show that the condition reaches the right step; test/e2e has those that a real cluster produces.
func TestExplain(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Cluster)
		step   Step // none: no problem
		reason string
		says   string // part of the message
		pool   string // reason and part of the message of pool lan
	}{
		"works": {change: func(*Cluster) {}},
		"no pool matches": {func(c *Cluster) {
			c.Pools[0].Spec.ServiceAllocation = &v1alpha1.ServiceAllocation{Namespaces: []string{"shop"}}
			waiting(c, "NoPool", "no pool accepts the Service: create one")
		}, StepAddress, "NoPool", "create one", "PoolNotAdmitting: "},
		"not auto-assigned": {func(c *Cluster) {
			c.Pools[0].Spec.AutoAssign = ptr.To(false)
			waiting(c, "NoPool", "no pool accepts the Service")
		}, StepAddress, "NoPool", "", "NotAutoAssigned: autoAssign is false: request the pool with the annotation ironlb.io/ip-pool: lan"},
		"exhausted": {func(c *Cluster) {
			other(c, "192.0.2.10")
			c.Pools[0].Spec.Addresses, c.Pools[0].Status.AvailableIPv4 = []string{"192.0.2.10"}, 0
			waiting(c, "PoolExhausted", "every pool is full: add addresses")
		}, StepAddress, "PoolExhausted", "add addresses", "PoolExhausted: "},
		"quota": {func(c *Cluster) {
			other(c, "192.0.2.10")
			c.Pools[0].Spec.NamespaceQuota = ptr.To(int64(1))
			waiting(c, "QuotaReached", "raise namespaceQuota")
		}, StepAddress, "QuotaReached", "raise", "QuotaReached: "},
		"lacks the family": {func(c *Cluster) {
			c.Services[0].Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
			waiting(c, "NoPool", "no pool for IPv6")
		}, StepAddress, "NoPool", "IPv6", "PoolLacksFamily: "},
		"cooling down": {func(c *Cluster) {
			c.Pools[0].Spec.ReuseAfter = &metav1.Duration{Duration: 10 * time.Minute}
			c.Pools[0].Status.AvailableIPv4 = 2
			c.Pools[0].Status.CoolingDown = []v1alpha1.CoolingAddress{{Address: "192.0.2.11", Freed: ago(time.Minute)}, {Address: "192.0.2.10", Freed: ago(4 * time.Minute)}}
			waiting(c, "PoolExhausted", "every free address cools down")
		}, StepAddress, "PoolExhausted", "", "CoolingDown: all free addresses cool down; the next is free in 6m"},
		"pool unreadable": {func(c *Cluster) {
			c.Pools[0].Spec.Addresses = []string{"nonsense"}
			c.Pools[0].Status.Conditions = []metav1.Condition{conditionOf("Ready", metav1.ConditionFalse, "Invalid", "spec.addresses[0]: nonsense")}
			waiting(c, "NoPool", "")
		}, StepAddress, "NoPool", "", "Invalid: spec.addresses[0]"},
		"no pool at all": {func(c *Cluster) {
			c.Pools = nil
			waiting(c, "NoPool", "create a pool")
		}, StepAddress, "NoPool", "create a pool", ""},
		"wrong class": {func(c *Cluster) {
			waiting(c, "", "")
			c.Services[0].Status.Conditions, c.Services[0].Spec.LoadBalancerClass = nil, ptr.To("metallb")
		}, StepClass, ReasonOtherClass, "class ironlb.io/lb only", ""},
		"only class": {func(c *Cluster) {
			waiting(c, "", "")
			c.Services[0].Status.Conditions, c.Settings.OnlyClass = nil, true
		}, StepClass, ReasonOtherClass, "--only-class", ""},
		"served by another": {change: func(c *Cluster) {
			c.Services[0].Status.Conditions, c.Services[0].Spec.LoadBalancerClass = nil, ptr.To("metallb")
		}},
		"no load balancer": {func(c *Cluster) { c.Services[0].Spec.Type = corev1.ServiceTypeClusterIP }, StepClass, ReasonNotLoadBalancer, "ClusterIP", ""},
		"controller is down": {func(c *Cluster) {
			waiting(c, "", "")
			c.Services[0].Status.Conditions, c.Controller = nil, "no replica is available"
		}, StepClass, ReasonNotProcessed, "no replica", ""},
		"sharing refused": {func(c *Cluster) {
			waiting(c, "SharingRefused", "default/other has the port: use another one")
		}, StepAddress, "SharingRefused", "use another one", ""},
		"draining": {func(c *Cluster) {
			c.Services[0].Status.Conditions[0] = conditionOf(v1alpha1.ConditionAllocated, metav1.ConditionTrue, "Draining", "set ironlb.io/reallocate")
		}, StepAddress, "Draining", "reallocate", ""},
		"address conflict": {func(c *Cluster) {
			announced(c, "AddressConflict", "02:00:00:00:00:01 answers for 192.0.2.10")
		}, StepOwner, "AddressConflict", "02:00:00:00:00:01", ""},
		"conflict while announced": {func(c *Cluster) {
			c.VirtualIPs[0].Status.Conditions = append(c.VirtualIPs[0].Status.Conditions, conditionOf(v1alpha1.ConditionConflict, metav1.ConditionTrue, "AddressConflict", "remove it there"))
		}, StepOwner, "AddressConflict", "remove it there", ""},
		"no eligible node": {func(c *Cluster) {
			c.VirtualIPs[0].Spec.Nodes, c.VirtualIPs[0].Status = nil, v1alpha1.VirtualIPStatus{
				Conditions: []metav1.Condition{conditionOf(v1alpha1.ConditionNoEligibleNode, metav1.ConditionTrue, "NoNodeMatches", "label a node")}}
		}, StepOwner, "NoNodeMatches", "label a node", ""},
		"no endpoint":            {func(c *Cluster) { c.Slices[0].Endpoints[0].Conditions.Ready = ptr.To(false) }, StepEndpoints, ReasonNoEndpoint, "app=web", ""},
		"endpoint without port":  {func(c *Cluster) { c.Slices[0].Ports = nil }, StepEndpoints, ReasonNoEndpoint, "spec.ports[0].targetPort", ""},
		"Local without endpoint": {func(c *Cluster) { announced(c, "NoLocalEndpoint", "start Pods on a or b") }, StepOwner, "NoLocalEndpoint", "start Pods", ""},
		"interface missing":      {func(c *Cluster) { announced(c, "NoInterface", "interfaces names eth9; a has eth0") }, StepOwner, "NoInterface", "eth9", ""},
		"kernel answers":         {func(c *Cluster) { announced(c, "KernelAnswers", "set arp_ignore") }, StepOwner, "KernelAnswers", "arp_ignore", ""},
		"data plane not ready": {func(c *Cluster) {
			c.Speakers[0].Status.DataPlane = v1alpha1.DataPlaneStatus{Reason: "ApplyFailed", Message: "nftables refuses"}
		}, StepForwarding, "ApplyFailed", "nftables refuses", ""},
		"owner is dead": {func(c *Cluster) { c.Speakers[0].Status.Stopped = ptr.To(ago(time.Minute)) }, StepOwner, "Stopped", "a answered", ""},
		"not placed":    {func(c *Cluster) { c.VirtualIPs = nil }, StepOwner, ReasonNotPlaced, "no VirtualIP", ""},
		"session down": {func(c *Cluster) {
			for i := range c.Speakers {
				c.Speakers[i].Status.BGP.Sessions[0] = v1alpha1.SessionStatus{Peer: "tor", State: "Active", Reason: "NoAnswer", Message: "is it up?"}
			}
		}, StepSession, ReasonNoSession, "BGPAdvertisement routers", ""},
		"unserved": {func(c *Cluster) {
			c.BGP[0].Status.Unserved = []v1alpha1.UnservedStatus{{Reason: "NoPeer", Message: "create a BGPPeer", Count: 1, Addresses: []string{"192.0.2.10"}}}
		}, StepSession, "NoPeer", "create a BGPPeer", ""},
		"unserved, by the lowest listed ones only": {func(c *Cluster) {
			for i := range c.Speakers {
				c.Speakers[i].Status.BGP.Unserved = []v1alpha1.UnservedStatus{{Reason: "DataPlaneNotReady", Count: 12, Addresses: []string{"192.0.2.8", "192.0.2.9"}}}
			}
		}, StepSession, ReasonNotReported, "a, b do not serve all addresses", ""},
		"served, by the lowest listed ones": {change: func(c *Cluster) {
			for i := range c.Speakers {
				c.Speakers[i].Status.BGP.Unserved = []v1alpha1.UnservedStatus{{Reason: "DataPlaneNotReady", Count: 12, Addresses: []string{"192.0.2.9", "192.0.2.11"}}}
			}
		}},
		"served by one node": {change: func(c *Cluster) {
			c.Speakers[0].Status.BGP.Unserved = []v1alpha1.UnservedStatus{{Reason: "DataPlaneNotReady", Count: 12, Addresses: []string{"192.0.2.9"}}}
		}},
		"no advertisement": {func(c *Cluster) {
			c.BGP, c.L2[0].Spec.IPAddressPools, c.VirtualIPs = nil, []string{"other"}, nil
		}, StepAdvertisement, ReasonNotAdvertised, "L2Advertisement lan does not select pool lan", ""},
		"Service not selected": {func(c *Cluster) {
			c.BGP, c.VirtualIPs = nil, nil
			c.L2[0].Spec.ServiceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"public": "yes"}}}
		}, StepAdvertisement, ReasonNotAdvertised, "L2Advertisement lan does not select the labels of the Service", ""},
		"wrong pairing with kube-proxy": {func(c *Cluster) {
			c.VirtualIPs[0].Status.Conditions = append(c.VirtualIPs[0].Status.Conditions,
				conditionOf(v1alpha1.ConditionKubeProxyConflict, metav1.ConditionTrue, "KubeProxyAnswersARP", "set strictARP"))
		}, StepKubeProxy, "KubeProxyAnswersARP", "strictARP", ""},
		"another proxy forwards": {change: func(c *Cluster) { c.Services[0].Labels = map[string]string{v1alpha1.LabelProxy: "other"} }},
		"another proxy, mode VIP": {func(c *Cluster) {
			c.Services[0].Labels, c.Settings.IPMode = map[string]string{v1alpha1.LabelProxy: "other"}, "VIP"
		}, StepKubeProxy, ReasonOtherProxy, "that proxy must", ""},
		"served before another class": {change: func(c *Cluster) { c.Services[0].Spec.LoadBalancerClass = ptr.To("metallb") }},
		"another's host name": {change: func(c *Cluster) {
			waiting(c, "", "")
			c.Services[0].Status.Conditions, c.Services[0].Spec.LoadBalancerClass = nil, ptr.To("metallb")
			c.Services[0].Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}}
		}},
		"flags unread": {func(c *Cluster) {
			waiting(c, "", "")
			c.Services[0].Status.Conditions, c.Services[0].Spec.LoadBalancerClass, c.Unread["Deployments"] = nil, ptr.To("x/y"), "forbidden"
		}, StepClass, ReasonUnread, "forbidden", ""},
		"status wiped": {func(c *Cluster) { c.Services[0].Status.LoadBalancer.Ingress = nil }, StepAddress, ReasonNotShown, "another writer", ""},
		"ending endpoints serve": {change: func(c *Cluster) {
			c.Slices[0].Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
		}},
		"no selector": {func(c *Cluster) { c.Services[0].Spec.Selector, c.Slices = nil, nil }, StepEndpoints, ReasonNoEndpoint, "it has no selector", ""},
		"sharer not selected": {func(c *Cluster) {
			other(c, "192.0.2.10")
			c.Services[0].Labels, c.L2, c.VirtualIPs = map[string]string{"public": "yes"}, nil, nil
			c.BGP[0].Spec.ServiceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"public": "yes"}}}
		}, StepAdvertisement, ReasonNotAdvertised, "does not select all Services on the address", ""},
		"Local by BGP, endpoint elsewhere": {func(c *Cluster) {
			c.Services[0].Spec.ExternalTrafficPolicy, c.L2, c.VirtualIPs = corev1.ServiceExternalTrafficPolicyLocal, nil, nil
			c.Speakers[1].Status.BGP.Sessions[0].State = "Active"
		}, StepSession, ReasonNoSession, "carries IPv4", ""},
		"all nodes dead": {func(c *Cluster) {
			for i := range c.Nodes {
				c.Nodes[i].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
			}
		}, StepOwner, "Silent", "a answered", ""},
		"pool unreadable, last good": {func(c *Cluster) {
			c.Pools[0].Spec.Addresses, c.Pools[0].Status.LastGood = []string{"nonsense"}, `{"addresses": ["2001:db8::/124"]}`
			waiting(c, "NoPool", "")
		}, StepAddress, "NoPool", "", "PoolLacksFamily: "},
		"not direct": {func(c *Cluster) {
			c.VirtualIPs[0].Status.Conditions = append(c.VirtualIPs[0].Status.Conditions, conditionOf(v1alpha1.ConditionNotDirect, metav1.ConditionTrue, "NoReturnRoute", "no gateway"))
		}, StepForwarding, "NoReturnRoute", "no gateway", ""},
		"refused address": {func(c *Cluster) {
			c.Services[0].Status.Conditions = append(c.Services[0].Status.Conditions, conditionOf("ironlb.io/Warnings", metav1.ConditionTrue, "AddressRefused", "192.0.2.10 is a gateway"))
		}, StepWarnings, "AddressRefused", "is a gateway", ""},
		"unread": {func(c *Cluster) { c.Unread["VirtualIPs"], c.VirtualIPs = "forbidden", nil }, StepOwner, ReasonUnread, "forbidden", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := healthy()
			test.change(c)
			e := c.Explain(&c.Services[0])
			if brief := c.Cause(&c.Services[0]); !reflect.DeepEqual(brief, e.Cause()) {
				t.Errorf("without the explanation the cause is %+v, want %+v", brief, e.Cause())
			}
			switch cause := e.Cause(); {
			case cause == nil:
				if test.step != "" {
					t.Errorf("no problem in %+v", e)
				}
			case cause.Step != test.step || cause.Reason != test.reason || !strings.Contains(cause.Message, test.says):
				t.Errorf("%+v, want %s %s %q, in %+v", cause, test.step, test.reason, test.says, e)
			}
			for _, f := range e.Findings {
				if f.Step == StepPool && f.Subject == "lan" && !strings.HasPrefix(f.Reason+": "+f.Message, test.pool) {
					t.Errorf("pool %+v, want %s", f, test.pool)
				}
			}
		})
	}
}

// Without the right to list the Services of all namespaces the steps that need them have a note.
func TestExplainInNamespace(t *testing.T) {
	for name, change := range map[string]func(*Cluster){
		"Advertisement": func(*Cluster) {},
		"Pool":          func(c *Cluster) { waiting(c, "PoolExhausted", "every pool is full") },
	} {
		c := healthy()
		c.Unread[OtherServices] = "forbidden"
		change(c)
		e := c.Explain(&c.Services[0])
		if !slices.ContainsFunc(e.Findings, func(f Finding) bool {
			return f.Step == Step(name) && f.State == Info && f.Reason == ReasonUnread && strings.Contains(f.Message, "forbidden")
		}) {
			t.Errorf("%s: no note in %+v", name, e.Findings)
		}
	}
}

// large returns a cluster of nodes, half of which are dead, and Services, a tenth of which wait for an address.
func large(services, nodes int) *Cluster {
	c := healthy()
	base := *c
	c.Services, c.Slices, c.VirtualIPs, c.Nodes, c.Speakers = nil, nil, nil, nil, nil
	c.Pools[0].Spec.Addresses = []string{"198.18.0.0/15"}
	var names []string
	for i := range nodes {
		node, speaker := *base.Nodes[0].DeepCopy(), *base.Speakers[0].DeepCopy()
		node.Name, speaker.Name = fmt.Sprintf("node-%04d", i), fmt.Sprintf("node-%04d", i)
		if i%2 == 0 {
			speaker.Status.Stopped = ptr.To(ago(time.Minute))
		}
		c.Nodes, c.Speakers, names = append(c.Nodes, node), append(c.Speakers, speaker), append(names, node.Name)
	}
	first := netip.MustParseAddr("198.18.0.0").As4()
	for i := range services {
		addr := netip.AddrFrom4([4]byte{first[0], first[1], byte(i >> 8), byte(i)}).String()
		svc, slice, vip := *base.Services[0].DeepCopy(), *base.Slices[0].DeepCopy(), *base.VirtualIPs[0].DeepCopy()
		svc.Name = fmt.Sprintf("web-%05d", i)
		slice.Name, slice.Labels[discoveryv1.LabelServiceName] = svc.Name+"-1", svc.Name
		c.Slices = append(c.Slices, slice)
		if i%10 == 0 {
			svc.Status.LoadBalancer.Ingress = nil
			svc.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAllocated, metav1.ConditionFalse, "NoPool", "no pool for "+svc.Name)}
			c.Services = append(c.Services, svc)
			continue
		}
		svc.Status.LoadBalancer.Ingress[0].IP, svc.Status.Conditions[1].Message = addr, addr+"=lan"
		vip.Name, vip.Spec.Addresses, vip.Spec.Nodes, vip.Status.Node = addr, []string{addr}, names, names[i%nodes]
		c.Services, c.VirtualIPs = append(c.Services, svc), append(c.VirtualIPs, vip)
	}
	return c
}

// BenchmarkProblems is what "kubectl ironlb status" computes: ten times the Services and nodes take ten times as long.
func BenchmarkProblems(b *testing.B) {
	for _, services := range []int{1000, 10000} {
		c := large(services, services/10)
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			for b.Loop() {
				once := *c
				once.absent, once.found = nil, nil
				if got := once.Problems(); len(got) < services/10 {
					b.Fatalf("%d problems", len(got))
				}
			}
		})
	}
}

// Problems are grouped by cause, the worst first.
func TestProblems(t *testing.T) {
	if got := healthy().Problems(); len(got) != 0 {
		t.Errorf("healthy: %+v", got)
	}
	c := healthy()
	other(c, "192.0.2.11")
	for i := range c.Services {
		waiting(c, "NoPool", "create a pool")
		c.Services[i].Status = c.Services[0].Status
	}
	c.Pools[0].Status.Conditions = append(c.Pools[0].Status.Conditions, conditionOf("Exhausted", metav1.ConditionTrue, "NoneFree", "add addresses"))
	c.Speakers[1].Status.Stopped = ptr.To(ago(time.Minute))
	c.Unread["Namespaces"] = "forbidden"
	var got []string
	for _, g := range c.Problems() {
		got = append(got, string(g.State)+" "+g.Kind+" "+g.Reason+" "+strings.Join(g.Objects, ","))
	}
	want := []string{
		"Problem Service NoPool default/web,default/other", "Problem Node Stopped b", "Unknown Cluster Unread Namespaces",
		"Unknown BGP session Stopped b to tor", "Warning IPAddressPool NoneFree lan",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q, want %q", got, want)
	}
}
