package failover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/steady"
)

const (
	udpPort = 53
	tcpPort = 90

	patience   = time.Minute     // timeout on a busy machine
	calm       = 2 * time.Second // time with one answering station per address until the state is settled
	readyEvery = time.Second     // interval of checks whether speakers are ready: each is a process
	watch      = 5 * time.Second // time without moves after a return: longer than a speaker observes before it claims anything
)

// scene is some VirtualIPs of both families, with their watcher.
type scene struct {
	t    *testing.T
	w    *steady.Watcher
	vips []vip
	made []vip // those with a Service
	// fences counts the fences of each node's speaker at the start, published are the nodes logged for more since, victims
	// those stopped by the test.
	fences             map[*lab.Node]int
	published, victims []*lab.Node
}

// vip is one unit of ownership: the addresses of a dual-stack Service.
type vip struct {
	service string
	addrs   []netip.Addr // IPv4, IPv6
}

// vipAt returns the i-th VirtualIP of a test.
func vipAt(i int) vip {
	v := vip{service: fmt.Sprintf("vip-%d", i+1), addrs: []netip.Addr{lab.FreeRange.Addr(), lab.FreeRange6.Addr()}}
	for f := range v.addrs {
		for range i + 1 {
			v.addrs[f] = v.addrs[f].Next()
		}
	}
	return v
}

var ports int // number of the tests' watchers

// watched starts a watcher of n future VirtualIPs.
func watched(t *testing.T, n int) *scene {
	t.Helper()
	cluster.Need(t)
	s := &scene{t: t, fences: map[*lab.Node]int{}}
	for _, node := range cluster.Nodes {
		s.fences[node] = fencesOf(t.Context(), node)
	}
	var addrs []netip.Addr
	for i := range n {
		s.vips = append(s.vips, vipAt(i))
		addrs = append(addrs, vipAt(i).addrs...)
	}
	ports++
	port, err := cluster.AddPort(t.Context(), fmt.Sprintf("watch%d", ports))
	if err != nil {
		t.Fatal(err)
	}
	s.w, err = steady.Watch(t.Context(), steady.WatchConfig{
		Namespace: port.Namespace, Interface: port.Interface, From4: lab.AskFrom, From6: lab.AskFrom6, Addrs: addrs,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.w.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.withdraw)
	return s
}

// serving creates n VirtualIPs and waits until each has its owner, which it returns.
func serving(t *testing.T, n int) (*scene, owners) {
	t.Helper()
	s := watched(t, n)
	for _, v := range s.vips {
		s.serve(v)
	}
	return s, s.settled("at the start")
}

// serve creates the Service with the addresses, until the end of the test.
func (s *scene) serve(v vip) {
	s.t.Helper()
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	_, err := services.Create(s.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: v.service, Annotations: map[string]string{
			v1alpha1.AnnotationAddresses: fmt.Sprintf("%v,%v", v.addrs[0], v.addrs[1]),
		}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			// After an outage of the API server Kubernetes considers every node, and so the Pod, not ready until their
			// next report.
			PublishNotReadyAddresses: true,
			Ports: []corev1.ServicePort{
				{Name: "udp", Port: udpPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(probe.PortUDP)},
				{Name: "tcp", Port: tcpPort, TargetPort: intstr.FromInt32(probe.PortStream)},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.made = append(s.made, v)
}

// withdraw deletes the Services, and waits until they and their VirtualIPs are gone.
func (s *scene) withdraw() {
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	cluster.Await(s.t, 2*patience, "the Services are gone", func(ctx context.Context) (err error) {
		for _, v := range s.made {
			if deleted := services.Delete(ctx, v.service, metav1.DeleteOptions{}); !apierrors.IsNotFound(deleted) {
				err = errors.Join(err, deleted, errors.New(v.service+" is still there"))
			}
		}
		return err
	})
	cluster.Await(s.t, patience, "the VirtualIPs are gone", func(ctx context.Context) error {
		for _, v := range s.made {
			if obj, err := virtualIP(ctx, v); err != nil || obj != nil {
				return errors.Join(err, errors.New("that of "+v.service+" is still there"))
			}
		}
		return nil
	})
}

// virtualIP returns the object with the addresses, nil if there is none.
func virtualIP(ctx context.Context, v vip) (*v1alpha1.VirtualIP, error) {
	var list v1alpha1.VirtualIPList
	if err := cluster.Objects.List(ctx, &list); err != nil {
		return nil, err
	}
	for i, o := range list.Items {
		if slices.Contains(o.Spec.Addresses, v.addrs[0].String()) {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// owners maps each VirtualIP, by service, to its owner.
type owners map[string]*lab.Node

// settled waits until every running speaker is ready, and one node alone has answered for both addresses of each
// VirtualIP for a while.
func (s *scene) settled(when string) owners {
	s.t.Helper()
	return s.settledFor(calm, when)
}

// settledFor is settled with another span.
func (s *scene) settledFor(span time.Duration, when string) owners {
	s.t.Helper()
	began, checked := time.Now(), time.Time{}
	all := owners{}
	cluster.Await(s.t, patience+span, "each VirtualIP has one owner "+when, func(ctx context.Context) error {
		if time.Since(checked) > readyEvery {
			for _, n := range cluster.Nodes {
				if p := n.Speaker(); p != nil && p.Running() {
					if err := ready(ctx, n); err != nil {
						began = time.Now()
						return err
					}
				}
			}
			checked = time.Now()
		}
		if time.Since(began) < span {
			return errors.New("it is too early to decide")
		}
		for _, v := range s.vips {
			n, err := s.owner(v)
			if err != nil {
				return err
			}
			all[v.service] = n
		}
		return nil
	})
	return all
}

// owner returns the node that answered for both addresses in the last span.
func (s *scene) owner(v vip) (*lab.Node, error) {
	now := time.Now()
	a, b := s.w.Owner(v.addrs[0], now, calm), s.w.Owner(v.addrs[1], now, calm)
	if a == "" || a != b {
		return nil, fmt.Errorf("%s: %q answers for %v, %q for %v; seen: %+v, %+v", v.service, a, v.addrs[0], b, v.addrs[1],
			s.w.Seen(v.addrs[0], now.Add(-calm), now), s.w.Seen(v.addrs[1], now.Add(-calm), now))
	}
	return byMAC(a)
}

func byMAC(mac string) (*lab.Node, error) {
	for _, n := range cluster.Nodes {
		if n.MAC() == mac {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%s answers, which is no node's", mac)
}

func ready(ctx context.Context, n *lab.Node) error {
	_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
	return err
}

// held counts VirtualIPs by node, including nodes without one.
func (o owners) held(nodes []*lab.Node) map[string]int {
	count := map[string]int{}
	for _, n := range nodes {
		count[n.Name] = 0
	}
	for _, n := range o {
		count[n.Name]++
	}
	return count
}

// even reports whether the nodes differ by at most one.
func even(count map[string]int) bool {
	n := slices.Sorted(maps.Values(count))
	return n[len(n)-1]-n[0] <= 1
}

func (o owners) String() string {
	var s []string
	for _, service := range slices.Sorted(maps.Keys(o)) {
		s = append(s, service+" on "+o[service].Name)
	}
	return strings.Join(s, ", ")
}

// overlap is the number of requests that two nodes may answer during a handover, because the successor answers before
// the old owner stops: some tenths of a second.
const overlap = 3

// reunited is the number of requests that two nodes may answer after the end of a partition.
const reunited = int(oneSecond / steady.AskEvery)

// stayed checks that only the VirtualIPs of moved nodes have moved since a moment, and no request had two answers.
func (s *scene) stayed(since time.Time, before, now owners, moved ...*lab.Node) {
	s.t.Helper()
	s.check(since, before, now, 0, moved...)
}

// handedOver is stayed where two nodes may answer for a moment.
func (s *scene) handedOver(since time.Time, before, now owners, moved ...*lab.Node) {
	s.t.Helper()
	s.check(since, before, now, overlap, moved...)
}

func (s *scene) check(since time.Time, before, now owners, twice int, moved ...*lab.Node) {
	s.t.Helper()
	starved := s.starved()
	for _, v := range s.vips {
		if slices.Contains(starved, before[v.service]) {
			continue
		}
		failed := false
		fail := func(format string, args ...any) {
			s.t.Helper()
			s.t.Errorf(format, args...)
			failed = true
		}
		moves := slices.Contains(moved, before[v.service])
		if !moves && before[v.service] != now[v.service] {
			fail("%s moved from %s to %s without need", v.service, before[v.service].Name, now[v.service].Name)
		}
		for _, a := range v.addrs {
			seen := s.seen(a, since, time.Now())
			most := 0
			if moves {
				most = 1
			}
			if seen.Moves() > most {
				fail("%s: %v was answered by one after the other: %v", v.service, a, names(seen.MACs))
			}
			if seen.Duplicates > twice {
				fail("%s: %d of %d questions for %v had two answers, from %v",
					v.service, seen.Duplicates, seen.Asked, a, names(seen.All))
			}
		}
		if failed {
			s.explain(v)
		}
	}
}

// causes are metrics of a speaker that show why a VirtualIP moved.
var causes = regexp.MustCompile(
	`(?m)^ironlb_(failover_moves|liveness_(fences|false_deaths|clock_stops|wedged|relayed)).* [1-9].*$`)

// explain logs the object of a VirtualIP, the Events about it and its Service, and metrics of the speakers.
func (s *scene) explain(v vip) {
	s.t.Helper()
	obj, err := virtualIP(s.t.Context(), v)
	if err != nil || obj == nil {
		s.t.Logf("%s: VirtualIP %+v, %v", v.service, obj, err)
		return
	}
	s.t.Logf("%s: generation %d, %+v, %+v", v.service, obj.Generation, obj.Spec, obj.Status)
	events, err := cluster.Kube.CoreV1().Events(metav1.NamespaceAll).List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Log(err)
		return
	}
	for _, e := range events.Items {
		if about := e.InvolvedObject.Name; about == v.service || about == obj.Name {
			s.t.Logf("%s: %s %s %s, %d times until %v", v.service, e.Source.Host, e.Reason, e.Message, e.Count, e.LastTimestamp)
		}
	}
	for _, n := range cluster.Nodes {
		s.t.Logf("%s since its start: %q", n.Name, causes.FindAllString(metricsOf(s.t.Context(), n), -1))
	}
}

// seen returns the watcher's observations of an address. It fails the test if these include no request or no answer.
func (s *scene) seen(addr netip.Addr, from, to time.Time) steady.Watched {
	s.t.Helper()
	seen := s.w.Seen(addr, from, to)
	if seen.Asked == 0 || len(seen.All) == 0 {
		s.t.Errorf("%v: %d questions from %s to %s, answered by %v",
			addr, seen.Asked, from.Format(time.TimeOnly), to.Format(time.TimeOnly), seen.All)
	}
	return seen
}

// names returns the names of the nodes with the hardware addresses.
func names(macs []string) (out []string) {
	for _, mac := range macs {
		name := mac
		if n, err := byMAC(mac); err == nil {
			name = n.Name
		}
		out = append(out, name)
	}
	return out
}

// client starts a steady client of each address of a VirtualIP, and waits until it is served. The returned function
// stops them and returns their observations since a moment.
func (s *scene) client(v vip) (stop func(since time.Time) []steady.Report) {
	s.t.Helper()
	var clients []*steady.Client
	for _, a := range v.addrs {
		c, err := steady.Start(cluster.Client.Namespace, steady.Target{
			UDP: netip.AddrPortFrom(a, udpPort), TCP: netip.AddrPortFrom(a, tcpPort),
		})
		if err != nil {
			s.t.Fatal(err)
		}
		clients = append(clients, c)
	}
	stopped := false
	halt := func() {
		if stopped {
			return
		}
		stopped = true
		for _, c := range clients {
			if err := c.Stop(); err != nil {
				s.t.Error(err)
			}
		}
	}
	s.t.Cleanup(halt)
	s.served(clients, v)
	return func(since time.Time) (all []steady.Report) {
		s.served(clients, v)
		now := time.Now()
		halt()
		for _, c := range clients {
			all = append(all, c.Report(since, now))
		}
		return all
	}
}

// served waits until the clients have been served for half a second.
func (s *scene) served(clients []*steady.Client, v vip) {
	s.t.Helper()
	cluster.Await(s.t, patience, "clients of "+v.service+" are served", func(context.Context) error {
		for i, c := range clients {
			if now := time.Now(); !c.Steady(now, 500*time.Millisecond, 250*time.Millisecond) {
				return fmt.Errorf("%v: %s", v.addrs[i], c.Report(now.Add(-500*time.Millisecond), now))
			}
		}
		return nil
	})
}

// reported waits until the status of each VirtualIP names its owner.
func (s *scene) reported(o owners) {
	s.t.Helper()
	for _, v := range s.vips {
		cluster.Await(s.t, patience, fmt.Sprintf("the status of %s names %s", v.service, o[v.service].Name), func(ctx context.Context) error {
			return statusNames(ctx, v, o[v.service])
		})
	}
}

// statusNames returns an error unless the status of a VirtualIP names the node.
func statusNames(ctx context.Context, v vip, n *lab.Node) error {
	obj, err := virtualIP(ctx, v)
	if err == nil && (obj == nil || obj.Status.Node != n.Name) {
		err = fmt.Errorf("it is %+v", obj)
	}
	return err
}

// listed waits until the list of a VirtualIP contains the node, or does not.
func listed(t testing.TB, v vip, n *lab.Node, want bool) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("the list of %s names %s: %t", v.service, n.Name, want), func(ctx context.Context) error {
		obj, err := virtualIP(ctx, v)
		if err != nil {
			return err
		}
		if obj == nil || slices.Contains(obj.Spec.Nodes, n.Name) != want {
			return fmt.Errorf("it is %+v", obj)
		}
		return nil
	})
}

// condition waits until a condition of a VirtualIP has the status, and returns it.
func condition(t testing.TB, v vip, kind string, status metav1.ConditionStatus) (found metav1.Condition) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("condition %s of %s is %s", kind, v.service, status), func(ctx context.Context) error {
		obj, err := virtualIP(ctx, v)
		if err != nil {
			return err
		}
		if obj == nil {
			return errors.New("there is no such VirtualIP")
		}
		for _, c := range obj.Status.Conditions {
			if c.Type == kind && c.Status == status {
				found = c
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", obj.Status.Conditions)
	})
	return found
}
