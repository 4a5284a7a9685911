// Package connectivity has the pure parts of "kubectl ironlb connectivity test": the tests and what they require, the
// objects to create, and the evaluation of what clients received. No clock, no I/O.
package connectivity

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Name of a test.
type Name string

const (
	L2           Name = "l2"
	BGP          Name = "bgp"
	DualStack    Name = "dual-stack"
	Hairpin      Name = "hairpin"
	SourceRanges Name = "source-ranges"
	Local        Name = "local"
	Failover     Name = "failover"
	FromHere     Name = "from-here"
)

// Test is one of the tests, in the order in which they run.
type Test struct {
	Name    Name
	Service string // that it is about
	Proves  string
	// Hosts: it has clients in the network of the nodes.
	Hosts bool
	// OnRequest: it runs only if it is named.
	OnRequest bool
}

// The Services of the tests.
const (
	Web        = "web"        // policy Cluster
	Restricted = "restricted" // loadBalancerSourceRanges
	LocalOnly  = "local"      // policy Local
)

// Tests are all tests.
var Tests = []Test{
	{Name: L2, Service: Web, Hosts: true, Proves: "exactly one node announces the address; it answers Pods, and processes of nodes"},
	{Name: BGP, Service: Web, Proves: "all BGP sessions are established and advertise the address; it answers Pods"},
	{Name: DualStack, Service: Web, Proves: "a Service has an address of each family, and both answer"},
	{Name: Hairpin, Service: Web, Proves: "the endpoint reaches itself through the address"},
	{Name: SourceRanges, Service: Restricted, Proves: "a client in loadBalancerSourceRanges is served, another one is not"},
	{Name: Local, Service: LocalOnly, Hosts: true, Proves: "externalTrafficPolicy Local: the endpoint sees the address of the client, and only its node announces"},
	{Name: FromHere, Service: Web, OnRequest: true, Proves: "the address answers this machine, the only client outside of the cluster (--from-here)"},
	{Name: Failover, Service: Web, OnRequest: true, Proves: "the address moves to another node while clients connect (--failover)"},
}

// Select returns the named tests, and those that a flag requests; without names all others. The order is that of Tests.
func Select(names []string, requested ...Name) ([]Test, error) {
	var known []string
	for _, t := range Tests {
		known = append(known, string(t.Name))
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("--tests: there is no test %q: name one of %s", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(Tests), func(t Test) bool {
		named := slices.Contains(names, string(t.Name)) || slices.Contains(requested, t.Name)
		return !named && (len(names) > 0 || t.OnRequest)
	}), nil
}

// mostNodes is the number of nodes with Pods of the test.
const mostNodes = 3

// Nodes returns the nodes for the Pods, by name: those that are ready and not cordoned, first those without a taint.
func Nodes(all []corev1.Node) ([]string, error) {
	fit := slices.DeleteFunc(slices.Clone(all), func(n corev1.Node) bool {
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		return !ready || n.Spec.Unschedulable || n.DeletionTimestamp != nil || cmp.Or(n.Labels[corev1.LabelOSStable], "linux") != "linux"
	})
	if len(fit) == 0 {
		return nil, errors.New("no node for the Pods of the test: none is Ready and not cordoned")
	}
	slices.SortFunc(fit, func(a, b corev1.Node) int {
		return cmp.Or(cmp.Compare(min(len(a.Spec.Taints), 1), min(len(b.Spec.Taints), 1)), cmp.Compare(a.Name, b.Name))
	})
	var names []string
	for _, n := range fit[:min(len(fit), mostNodes)] {
		names = append(names, n.Name)
	}
	return names, nil
}

// Families returns the families of the pool, or, without a name, of the pools that assign to every Service.
func Families(pools []v1alpha1.IPAddressPool, name string) []corev1.IPFamily {
	var out []corev1.IPFamily
	for i := range pools {
		p := &pools[i]
		if name == "" && (p.Spec.AutoAssign != nil && !*p.Spec.AutoAssign || p.Spec.ServiceAllocation != nil) || name != "" && p.Name != name {
			continue
		}
		for _, a := range p.Spec.Addresses {
			family := corev1.IPv4Protocol
			if strings.Contains(a, ":") {
				family = corev1.IPv6Protocol
			}
			if !slices.Contains(out, family) {
				out = append(out, family)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Preconditions checks before anything is created that there are a pool and, if one is named, that it exists.
func Preconditions(c *diagnose.Cluster, pool string) error {
	if c.Unread["IPAddressPools"] != "" {
		return nil // the Services will show
	}
	if len(c.Pools) == 0 {
		return errors.New("there is no IPAddressPool, so no Service gets an address: create one")
	}
	if pool != "" && !slices.ContainsFunc(c.Pools, func(p v1alpha1.IPAddressPool) bool { return p.Name == pool }) {
		return fmt.Errorf("--pool: there is no IPAddressPool %s: see kubectl get ippool", pool)
	}
	return nil
}

// Covered returns which kinds of advertisements cover the addresses of an explained Service.
func Covered(e *diagnose.Explanation) (l2, bgp bool) {
	for _, f := range e.Findings {
		l2 = l2 || f.Step == diagnose.StepOwner
		bgp = bgp || f.Step == diagnose.StepSession
	}
	return l2, bgp
}

// Skip returns why a test does not apply to a Service that has addresses; empty if it does.
func Skip(name Name, c *diagnose.Cluster, svc *corev1.Service, pool string) string {
	e := c.Explain(svc)
	l2, bgp := Covered(&e)
	switch name {
	case L2:
		if bgp && !l2 {
			return "only BGPAdvertisements cover the address"
		}
	case Local:
		if c.Settings.ForwardingOf(svc) == v1alpha1.ForwardingNodePort {
			return "forwarding nodeport does not keep the address of the client"
		}
	case Failover:
		if !l2 {
			return "no L2Advertisement covers the address, so no node owns it"
		}
	case BGP:
		if len(c.Peers) == 0 {
			return "there is no BGPPeer"
		}
	case DualStack:
		if families := Families(c.Pools, pool); len(families) == 1 {
			return fmt.Sprintf("the pools have only %s addresses", families[0])
		}
		if len(svc.Spec.IPFamilies) == 1 {
			return fmt.Sprintf("the cluster has only %s Services", svc.Spec.IPFamilies[0])
		}
	}
	return ""
}

// Sessions returns the problems of BGP sessions and peers.
func Sessions(c *diagnose.Cluster) (problems []string) {
	for _, g := range c.Problems() {
		if (g.Kind == "BGP session" || g.Kind == "BGPPeer") && g.State == diagnose.Problem {
			problems = append(problems, fmt.Sprintf("%s %s: %s", g.Kind, strings.Join(g.Objects, ", "), strings.TrimSuffix(g.Reason+": "+g.Message, ": ")))
		}
	}
	return problems
}

// Established counts the sessions of present nodes that are established.
func Established(c *diagnose.Cluster) (n int) {
	absent := c.Absent()
	for i := range c.Speakers {
		if s := &c.Speakers[i]; s.Status.BGP != nil && absent[s.Name] == "" {
			for _, session := range s.Status.BGP.Sessions {
				if session.State == v1alpha1.SessionEstablished {
					n++
				}
			}
		}
	}
	return n
}

// Owner returns the node that answers for an address, empty for none.
func Owner(c *diagnose.Cluster, addr netip.Addr) string {
	if v := c.VirtualIP(addr); v != nil {
		return v.Status.Node
	}
	return ""
}

// Successor returns the VirtualIP of an address, and the first node of its list, other than the owner, that could answer;
// nil if there is none.
func Successor(c *diagnose.Cluster, addr netip.Addr) (*v1alpha1.VirtualIP, *corev1.Node) {
	v := c.VirtualIP(addr)
	if v == nil || v.Status.Node == "" {
		return v, nil
	}
	absent := c.Absent()
	for _, name := range v.Spec.Nodes {
		n := slices.IndexFunc(c.Nodes, func(n corev1.Node) bool { return n.Name == name && !n.Spec.Unschedulable })
		healthy := slices.ContainsFunc(c.Speakers, func(s v1alpha1.SpeakerStatus) bool { return s.Name == name && s.Status.DataPlane.Healthy })
		if name != v.Status.Node && absent[name] == "" && healthy && n >= 0 {
			return v, &c.Nodes[n]
		}
	}
	return v, nil
}

// Problem returns the first problem of the steps in an explanation, nil if there is none.
func Problem(e *diagnose.Explanation, steps ...diagnose.Step) error {
	for _, f := range e.Findings {
		if f.State == diagnose.Problem && slices.Contains(steps, f.Step) {
			return fmt.Errorf("%s %s: %s", f.Step, f.Subject, strings.TrimPrefix(f.Reason+": "+f.Message, ": "))
		}
	}
	return nil
}

// ours are the labels of all objects.
var ours = map[string]string{"app.kubernetes.io/managed-by": "kubectl-ironlb"}

// Ours reports whether a run created the object.
func Ours(o metav1.Object) bool {
	return o.GetLabels()["app.kubernetes.io/managed-by"] == "kubectl-ironlb"
}
