package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/cmd/internal/echo"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/connectivity"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// network is a cluster in which Pods start and Services get addresses. Its Pods are answered, except for answer.
type network struct {
	t      *testing.T
	client client.WithWatch
	// change changes an object before it is created, answer the result of a request.
	change func(client.Object) error
	answer func(pod, url string) echo.Transfer
	// announcers of an address; nil: its owner.
	announcers  []string
	forbidden   bool // to ask speakers
	podIPs      map[string]string
	interrupted bool // the first deletion of the namespace
	// stored changes an object after it is stored, and the result of Create.
	stored  func(client.Object) error
	noRoute bool // from this machine
	// stuck is the kind whose objects cannot be deleted.
	stuck client.Object
}

func newNetwork(t *testing.T) *network {
	n := &network{t: t, podIPs: map[string]string{}}
	objects := []client.Object{
		&v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan"}, Spec: v1alpha1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/28"}}},
		&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "lan"}},
	}
	for _, name := range []string{"a", "b"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		speaker := ourPod("ironlb-speaker-"+name, "ironlb-speaker", name)
		ready(speaker, "192.0.2.10")
		speaker.Spec.Containers[0].Image = "example.org/ironlb-speaker:1"
		objects = append(objects, node, speaker, &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1alpha1.SpeakerStatusStatus{DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}}})
	}
	n.client = interceptor.NewClient(cluster(objects...), interceptor.Funcs{Create: n.create, Patch: n.patch, Delete: n.remove})
	return n
}

func ready(p *corev1.Pod, ip string) {
	p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func (n *network) create(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
	if n.change != nil {
		if err := n.change(o); err != nil {
			return err
		}
	}
	var more []client.Object
	switch o := o.(type) {
	case *corev1.Pod:
		if o.Status.ContainerStatuses == nil {
			n.podIPs[o.Name] = fmt.Sprintf("10.0.0.%d", len(n.podIPs)+1)
			ready(o, n.podIPs[o.Name])
		}
	case *corev1.Service:
		more = n.serve(o)
	case *v1alpha1.L2Advertisement:
		o.Status.Conditions = []metav1.Condition{conditionOf("Ready", "True", "Read", "")}
	}
	o.SetUID(types.UID(rand.Text()))
	if err := c.Create(ctx, o, opts...); err != nil {
		return err
	}
	if n.stored != nil {
		if err := n.stored(o); err != nil {
			o.SetUID("")
			return err
		}
	}
	if err := c.Status().Update(ctx, o); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	for _, o := range more {
		if err := c.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// serve gives a Service its address, owner and endpoint.
func (n *network) serve(svc *corev1.Service) []client.Object {
	addr := map[string]string{"web": "192.0.2.1", "restricted": "192.0.2.2", "local": "192.0.2.3"}[svc.Name]
	svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	if svc.Status.Conditions == nil {
		svc.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAllocated, "True", "Allocated", ""),
			conditionOf(v1alpha1.ConditionAddresses, "True", "Recorded", addr+"=lan")}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name, Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{NodeName: ptr.To("a"), Addresses: []string{n.podIPs["server"]}}}}
	return []client.Object{vip(addr, svc.Namespace+"/"+svc.Name, "a b", "a", conditionOf("Announced", "True", "Owner", "")), slice}
}

// patch moves a VirtualIP on request to the node that an advertisement of the test prefers.
func (n *network) patch(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := c.Patch(ctx, o, patch, opts...); err != nil {
		return err
	}
	v, is := o.(*v1alpha1.VirtualIP)
	if !is {
		return nil
	}
	var ad v1alpha1.L2Advertisement
	if err := c.Get(ctx, client.ObjectKey{Name: connectivity.Namespace}, &ad); err != nil {
		return err
	}
	v.Status.Node = ad.Spec.PreferredNodeSelectors[0].Preference.MatchLabels[corev1.LabelHostname]
	return c.Status().Update(ctx, v)
}

// remove fails once: no run may leave its namespace because of a lost connection.
func (n *network) remove(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
	if _, is := o.(*corev1.Namespace); is && !n.interrupted {
		n.interrupted = true
		return errors.New("TLS handshake timeout")
	}
	if reflect.TypeOf(o) == reflect.TypeOf(n.stuck) {
		return errors.New("no right to delete it")
	}
	return c.Delete(ctx, o, opts...)
}

// clientPods are the clients of the network, speakerPods its speakers.
type (
	clientPods  struct{ *network }
	speakerPods struct{ *network }
)

func (clientPods) Logs(context.Context, string, *corev1.PodLogOptions) ([]byte, error) {
	return nil, nil
}
func (speakerPods) Logs(context.Context, string, *corev1.PodLogOptions) ([]byte, error) {
	return nil, nil
}

// Exec answers as many requests as the client would make. One with a rate makes them until it is stopped.
func (n clientPods) Exec(ctx context.Context, pod, _ string, argv ...string) ([]byte, error) {
	url, t := argv[len(argv)-1], echo.Transfer{Body: "server", OK: true, Took: time.Millisecond}
	value := func(flag string) (v int) {
		if _, err := fmt.Sscan(argv[slices.Index(argv, flag)+1], &v); err != nil {
			n.t.Error(err)
		}
		return v
	}
	requests := value("--count")
	switch {
	case strings.Contains(url, "//192.0.2.2:") && pod != "client":
		t = echo.Transfer{Error: "Connection timed out"}
	case strings.HasSuffix(url, echo.ClientIP):
		t.Body = n.podIPs[pod] + ":4711"
	}
	if n.answer != nil {
		if other := n.answer(pod, url); other != (echo.Transfer{}) {
			t = other
		}
	}
	if value("--per-second") > 0 {
		began := time.Now()
		<-ctx.Done()
		requests = int(time.Since(began) * perSecond / time.Second)
	}
	line, err := json.Marshal(t)
	if err != nil {
		n.t.Error(err)
	}
	return bytes.Repeat(append(line, '\n'), requests), ctx.Err()
}

func (n speakerPods) Exec(ctx context.Context, pod, _ string, _ ...string) ([]byte, error) {
	if n.forbidden {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods/exec"}, pod, errors.New("no right"))
	}
	var list v1alpha1.VirtualIPList
	if err := n.client.List(ctx, &list); err != nil {
		return nil, err
	}
	var vips []any
	for _, v := range list.Items {
		announced, here := map[string][]string{}, strings.TrimPrefix(pod, "ironlb-speaker-")
		if here == v.Status.Node && n.announcers == nil || slices.Contains(n.announcers, here) {
			announced[v.Spec.Addresses[0]] = []string{"eth0"}
		}
		vips = append(vips, map[string]any{"announced": announced})
	}
	return json.Marshal(map[string]any{"speaker": map[string]any{"loop": map[string]any{"virtualIPs": vips}}})
}

// connect returns the text and the exit code of a run. The clock is that of the bubble.
func (n *network) connect(ctx context.Context, o connectivityOptions, format string) (string, int) {
	var out bytes.Buffer
	o.timeout = 10 * time.Second
	r := &connectivityRun{o: o, execs: clientPods{n}, progress: &out,
		tool: &tool{client: n.client, pods: speakerPods{n}, out: &out, now: time.Now, system: v1alpha1.Namespace, output: format,
			flags: genericclioptions.NewConfigFlags(false)},
		request: func(_ context.Context, url string) echo.Transfer {
			body := "server"
			if strings.HasSuffix(url, echo.ClientIP) {
				body = "127.0.0.1:4711"
			}
			if n.noRoute {
				return echo.Transfer{Error: connectivity.NoRoute}
			}
			return echo.Transfer{Body: body, OK: true, Took: time.Millisecond}
		}}
	code := exitCode(&out, r.run(ctx))
	return out.String(), code
}

// left returns what a run has left.
func (n *network) left(t *testing.T) (out []string) {
	t.Helper()
	for _, o := range []client.Object{&corev1.Namespace{}, &v1alpha1.L2Advertisement{}} {
		if err := n.client.Get(t.Context(), client.ObjectKey{Name: connectivity.Namespace}, o); err == nil {
			out = append(out, fmt.Sprintf("%T", o))
		}
	}
	return out
}

func TestConnectivityPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		out, code := n.connect(t.Context(), connectivityOptions{here: true, failover: true}, "")
		out = strings.Replace(out, "of 41 requests", "of 40 requests", 1) // the last one and the end coincide
		expect(t, "all", out, `
namespace ironlb-connectivity-test: starting 6 Pods of example.org/ironlb-speaker:1 on a, b
ok      l2              0.0s  a alone announces 192.0.2.1 on eth0; answered to Pod client on a, the network of a, the network of b, Pod other on a, Pod remote on b
skipped bgp             0.0s  there is no BGPPeer
skipped dual-stack      0.0s  the pools have only IPv4 addresses
ok      hairpin         0.0s  Pod server reaches itself at 192.0.2.1
ok      source-ranges   0.0s  Pod client on a is served at 192.0.2.2, Pod other on a is not
ok      local           0.0s  the endpoint sees the addresses of Pods; only its node a announces 192.0.2.3
ok      from-here       0.0s  this machine is answered at 192.0.2.1; with policy Local the endpoint sees the address of this machine
ok      failover        2.0s  192.0.2.1 moved from a to b in 0.0s; longest time without an answer: 50ms for Pod remote on b, 0 of 40 requests failed; 50ms for this machine, 0 of 40 requests failed
6 passed, 0 failed, 2 skipped
removing namespace ironlb-connectivity-test`)
		if code != 0 || n.left(t) != nil {
			t.Errorf("exit code %d, left %v", code, n.left(t))
		}
	})
}

// Without the right to ask the speakers, the report of the owner counts.
func TestConnectivityForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.forbidden = true
		out, code := n.connect(t.Context(), connectivityOptions{tests: []string{"l2"}}, "")
		if code != 0 || !strings.Contains(out, "a announces 192.0.2.1 by its own report; you may not ask the other speakers") {
			t.Errorf("exit code %d:\n%s", code, out)
		}
	})
}

// Each fault fails the test that is about it, with what was tried and the explanation, and leaves nothing.
func TestConnectivityFails(t *testing.T) {
	timeout := echo.Transfer{Took: echo.Limit, Error: "Connection timed out"}
	for name, test := range map[string]struct {
		tests, want string
		fault       func(*network)
	}{
		"no answer": {"l2", "from Pod remote on b to 192.0.2.1: not every request was answered by Pod server: Connection timed out\n" +
			"    tried http://192.0.2.1:80/hostname from Pod client on a: \"server\"", func(n *network) {
			n.answer = func(pod, url string) (t echo.Transfer) {
				if pod == "remote" && strings.Contains(url, ":80/") {
					t = timeout
				}
				return t
			}
		}},
		"two announce":   {"l2", "192.0.2.1: more than one speaker announces it: a, b", func(n *network) { n.announcers = []string{"a", "b"} }},
		"another server": {"hairpin", `not every request was answered by Pod server: "web-1"`, func(n *network) { n.answer = answerAt(":80/", echo.Transfer{Body: "web-1", OK: true}) }},
		"not refused": {"source-ranges", "loadBalancerSourceRanges 10.0.0.2/32: Pod other on a: the address answers a client that it must not answer", func(n *network) {
			n.answer = answerAt("192.0.2.2", echo.Transfer{Body: "server", OK: true})
		}},
		"translated": {"local", "the endpoint sees the address 192.0.2.10, and that of the client is 10.0.0.2", func(n *network) { n.answer = answerAt(echo.ClientIP, echo.Transfer{Body: "192.0.2.10:1", OK: true}) }},
		"wrong node": {"local", "192.0.2.3 must be announced by a, the only node with an endpoint: b announces it", func(n *network) { n.announcers = []string{"b"} }},
		"silent, long": {"failover", "too long without an answer: 10s for Pod remote on b", func(n *network) {
			n.answer = answerAt(":80/", echo.Transfer{Took: 250 * time.Millisecond, Error: "connection refused"})
		}},
		"no address": {"hairpin", "no address for Service web: NoPool: create one", func(n *network) {
			n.change = onService("web", func(svc *corev1.Service) {
				svc.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAllocated, "False", "NoPool", "create one")}
			})
		}},
		"a policy": {"hairpin", "See also NetworkPolicy deny of namespace ironlb-connectivity-test", func(n *network) {
			n.answer = answerAt(":80/", timeout)
			n.change = onService("web", func(*corev1.Service) {
				if err := n.client.Create(n.t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: connectivity.Namespace, Name: "deny"}}); err != nil {
					n.t.Error(err)
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				test.fault(n)
				out, code := n.connect(t.Context(), connectivityOptions{tests: []string{test.tests}}, "")
				if code != exitProblems || !strings.Contains(out, "FAIL    "+test.tests) || !strings.Contains(out, test.want) ||
					!strings.Contains(out, "    Service ironlb-connectivity-test/") || !strings.Contains(out, "0 passed, 1 failed, 0 skipped") {
					t.Errorf("exit code %d:\n%s\nwant: %s", code, out, test.want)
				}
				if n.left(t) != nil {
					t.Errorf("left %v", n.left(t))
				}
			})
		})
	}
}

func answerAt(part string, with echo.Transfer) func(pod, url string) echo.Transfer {
	return func(_, url string) (t echo.Transfer) {
		if strings.Contains(url, part) {
			t = with
		}
		return t
	}
}

func onService(name string, change func(*corev1.Service)) func(client.Object) error {
	return func(o client.Object) error {
		if svc, is := o.(*corev1.Service); is && svc.Name == name {
			change(svc)
		}
		return nil
	}
}

// What prevents the tests is no failure of IronLB.
func TestConnectivityCannotRun(t *testing.T) {
	for name, test := range map[string]struct {
		o     connectivityOptions
		want  string
		fault func(*network)
	}{
		"Pod Security": {connectivityOptions{}, "or leave out the tests that need such Pods, with --tests", func(n *network) {
			n.change = func(o client.Object) error {
				if p, is := o.(*corev1.Pod); is && p.Spec.HostNetwork {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, p.Name, errors.New("violates PodSecurity"))
				}
				return nil
			}
		}},
		"no image": {connectivityOptions{image: "x"}, "the Pods of the test do not start: client on a: ImagePullBackOff: not found", func(n *network) {
			n.change = func(o client.Object) error {
				if p, is := o.(*corev1.Pod); is && p.Name == "client" {
					p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
						Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}}}
				}
				return nil
			}
		}},
		"no way between Pods": {connectivityOptions{}, "Pod remote on b does not reach Pod server at 10.0.0.1, without IronLB", func(n *network) {
			n.answer = func(pod, _ string) (t echo.Transfer) {
				if pod == "remote" {
					t = echo.Transfer{Took: echo.Limit, Error: "Connection timed out"}
				}
				return t
			}
		}},
		"unknown test": {connectivityOptions{tests: []string{"l4"}}, `--tests: there is no test "l4"`, func(*network) {}},
		"unknown pool": {connectivityOptions{pool: "wan"}, "--pool: there is no IPAddressPool wan", func(*network) {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				test.fault(n)
				out, code := n.connect(t.Context(), test.o, "")
				if code != exitError || !strings.Contains(out, test.want) || n.left(t) != nil {
					t.Errorf("exit code %d, left %v:\n%s\nwant: %s", code, n.left(t), out, test.want)
				}
			})
		})
	}
}

// A pool without further addresses skips the tests of the other Services.
func TestConnectivityPoolExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.change = onService("local", func(svc *corev1.Service) {
			svc.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAllocated, "False", "PoolExhausted", "no address is free in lan")}
		})
		out, code := n.connect(t.Context(), connectivityOptions{tests: []string{"hairpin", "local"}}, "")
		if code != 0 || !strings.Contains(out, "no address is free for another Service: no address is free in lan\n1 passed, 0 failed, 1 skipped") {
			t.Errorf("exit code %d:\n%s", code, out)
		}
	})
}

// A run refuses to disturb another one, whose objects --keep leaves. Ctrl-C removes them.
func TestConnectivityKeepAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		out, code := n.connect(t.Context(), connectivityOptions{tests: []string{"hairpin"}, keep: true}, "")
		if code != 0 || !strings.HasSuffix(out, "is kept: remove it with: kubectl delete namespace ironlb-connectivity-test\n") || n.left(t) == nil {
			t.Errorf("exit code %d:\n%s", code, out)
		}
		out, code = n.connect(t.Context(), connectivityOptions{}, "")
		if code != exitError || !strings.Contains(out, "exists, of another run that began") || !strings.Contains(out, "kubectl delete namespace ironlb-connectivity-test") || n.left(t) == nil {
			t.Errorf("exit code %d:\n%s", code, out)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		ctx, cancel := context.WithCancel(t.Context())
		n.answer = func(_, url string) (t echo.Transfer) {
			if strings.Contains(url, ":80/") {
				cancel()
			}
			return t
		}
		out, code := n.connect(ctx, connectivityOptions{}, "")
		if code != exitError || strings.Contains(out, "FAIL") || strings.Contains(out, "error") || n.left(t) != nil {
			t.Errorf("exit code %d, left %v:\n%s", code, n.left(t), out)
		}
	})
}

// What the API server stored is removed even if Create returned an error, but nothing of another run.
func TestConnectivityLeaves(t *testing.T) {
	lost := func(kind client.Object) func(client.Object) error {
		return func(o client.Object) error {
			if reflect.TypeOf(o) == reflect.TypeOf(kind) && o.GetName() == connectivity.Namespace {
				return errors.New("connection lost")
			}
			return nil
		}
	}
	another := func(n *network) func(client.Object) error {
		return func(o client.Object) error {
			if _, is := o.(*corev1.Service); !is {
				return nil
			}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: connectivity.Namespace}}
			if err := n.client.Delete(n.t.Context(), ns); err != nil {
				return err
			}
			ns.UID = "another"
			return n.client.Create(n.t.Context(), ns)
		}
	}
	for name, test := range map[string]struct {
		fault func(*network)
		code  int
		want  string
		left  []string
	}{
		"namespace":       {func(n *network) { n.stored = lost(&corev1.Namespace{}) }, exitError, "creating Namespace ironlb-connectivity-test: connection lost", nil},
		"L2Advertisement": {func(n *network) { n.stored = lost(&v1alpha1.L2Advertisement{}) }, exitProblems, "connection lost", nil},
		"stuck": {func(n *network) { n.stuck = &v1alpha1.L2Advertisement{} }, exitError,
			"no right to delete it. Remove it with: kubectl delete l2advertisement", []string{"*v1alpha1.L2Advertisement"}},
		"another run": {func(n *network) {
			n.change = func(o client.Object) error {
				if _, is := o.(*corev1.Namespace); is {
					return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "namespaces"}, o.GetName())
				}
				return nil
			}
		}, exitError, "already exists", nil},
		"another namespace": {func(n *network) { n.interrupted, n.change = true, another(n) }, 0, "", []string{"*v1.Namespace"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				test.fault(n)
				out, code := n.connect(t.Context(), connectivityOptions{tests: []string{"failover"}, failover: true}, "")
				if code != test.code || !strings.Contains(out, test.want) || !slices.Equal(n.left(t), test.left) {
					t.Errorf("exit code %d, left %v:\n%s", code, n.left(t), out)
				}
				if name == "another run" && strings.Contains(out, "removing") {
					t.Error(out)
				}
			})
		})
	}
}

// A machine without a route does not count in the failover.
func TestFailoverWithoutRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.noRoute = true
		out, code := n.connect(t.Context(), connectivityOptions{tests: []string{"failover"}, failover: true, here: true}, "")
		if code != exitProblems || !strings.Contains(out, "ok      failover") || !strings.Contains(out, "requests failed; "+connectivity.NoRoute) {
			t.Errorf("exit code %d:\n%s", code, out)
		}
	})
}

func TestConnectivityOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.announcers = []string{}
		out, code := n.connect(t.Context(), connectivityOptions{tests: []string{"l2", "hairpin"}}, "json")
		start := strings.Index(out, "{")
		var report connectivityReport
		if err := json.NewDecoder(strings.NewReader(out[max(0, start):])).Decode(&report); err != nil || code != exitProblems {
			t.Fatalf("exit code %d, %v:\n%s", code, err, out)
		}
		failed, passed := report.Tests[0], report.Tests[1]
		if failed.Result != "failed" || failed.Explanation == nil || !strings.Contains(failed.Message, "no speaker announces it") || failed.Seconds < 9 ||
			passed.Result != "passed" || report.Image != "example.org/ironlb-speaker:1" || len(report.Nodes) != 2 {
			t.Errorf("%+v", report)
		}
		out, code = n.connect(t.Context(), connectivityOptions{}, "table")
		if code != exitError || !strings.Contains(out, "-o table: write json or yaml") {
			t.Errorf("exit code %d:\n%s", code, out)
		}
	})
}

func TestRequestFromHere(t *testing.T) {
	if got := requestFromHere(t.Context(), "http://[fe80::1]:80/"); got.Error != connectivity.NoRoute { // no interface
		t.Errorf("%+v", got)
	}
}
