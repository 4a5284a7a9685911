package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(-d)} }

func vip(addresses, services, nodes, owner string, conditions ...metav1.Condition) *v1alpha1.VirtualIP {
	v := &v1alpha1.VirtualIP{}
	v.Spec.Addresses = strings.Split(addresses, ",")
	v.Name = strings.ReplaceAll(v.Spec.Addresses[0], ":", "-")
	for s := range strings.SplitSeq(services, ",") {
		ns, name, _ := strings.Cut(s, "/")
		v.Spec.Services = append(v.Spec.Services, v1alpha1.ServiceReference{Namespace: ns, Name: name})
	}
	v.Spec.Nodes = strings.Fields(nodes)
	if v.Status.Node = owner; owner != "" {
		v.Status.Since = ago(3 * time.Minute)
	}
	v.Status.Conditions = conditions
	return v
}

func conditionOf(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

func cluster(objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(kinds()).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.VirtualIP{}, &v1alpha1.IPAddressPool{}, &v1alpha1.SpeakerStatus{}, &corev1.Service{}).
		WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*corev1.Event).Reason} }).Build()
}

// run returns the output of the command, and its error in the last line.
func run(cl client.Client, args ...string) string {
	var out bytes.Buffer
	cmd := command(func(*genericclioptions.ConfigFlags) (client.Client, error) { return cl, nil }, func() time.Time { return now })
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	exitCode(&out, cmd.ExecuteContext(context.Background()))
	return out.String()
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got, want = strings.TrimSpace(got), strings.TrimSpace(want); got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func example() client.WithWatch {
	held := conditionOf("Announced", "True", "Owner", "")
	return cluster(
		vip("192.0.2.10,2001:db8::10", "default/web,default/web6", "a b c", "a", held),
		vip("192.0.2.9", "default/moving", "b a c", "a", held),
		vip("192.0.2.200", "shop/cart", "b c", "b", conditionOf("Announced", "False", "NoLocalEndpoint", "no ready endpoint on a node of the list"),
			conditionOf("Conflict", "True", "ForeignClaim", "02:00:00:00:00:01 answers for 192.0.2.200 on eth0")),
		vip("192.0.2.201", "shop/none", "", "", conditionOf("NoEligibleNode", "True", "NoNodeMatches", "label a node")),
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Reason: "ApplyFailed", Message: "nftables refuses"}, Alive: "1/2", Updated: ago(2 * time.Hour),
			Members: []v1alpha1.MemberStatus{{Node: "a", State: v1alpha1.MemberAlive}, {Node: "c", State: v1alpha1.MemberSilent, Since: ago(time.Minute)}},
		}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true, Reason: "Programmed"}, VirtualIPs: 2, Alive: "2/2", Updated: ago(time.Second),
			Interfaces: []v1alpha1.InterfaceStatus{{Name: "eth0", Up: true}, {Name: "eth1"}},
			Members:    []v1alpha1.MemberStatus{{Node: "b", State: v1alpha1.MemberAlive}},
		}},
	)
}

// TestPrintable: no text of an object, and no error, moves the cursor, begins a line or reverses text.
func TestPrintable(t *testing.T) {
	const hostile = "\x1b[2J\x1b]0;title\a\u009b1mü\u202eok\u2066\r\n192.0.2.99\tspoof\u2028"
	const want = `\x1b[2J\x1b]0;title\a\u009b1mü\u202eok\u2066  192.0.2.99 spoof `
	bgp := &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: hostile, Address: hostile, State: hostile, Reason: hostile, Message: hostile}},
		Unserved: []v1alpha1.UnservedStatus{{Reason: hostile, Message: hostile, Count: 1, Addresses: []string{hostile}}}}
	out := run(cluster(
		vip("192.0.2.9", "a/"+hostile, hostile, hostile, conditionOf("Announced", "False", hostile, hostile)),
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane:  v1alpha1.DataPlaneStatus{Reason: hostile, Message: hostile},
			Interfaces: []v1alpha1.InterfaceStatus{{Name: hostile}}, Members: []v1alpha1.MemberStatus{{Node: hostile}}, BGP: bgp,
		}},
		&v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Status: v1alpha1.BGPAdvertisementStatus{Unserved: bgp.Unserved}},
	), "status")
	if bad := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); bad >= 0 || strings.Contains(out, "\n192.0.2.99") {
		t.Errorf("the output is %q", out)
	}
	if n := strings.Count(out, strings.TrimSpace(want)); n < 15 {
		t.Errorf("%d texts in:\n%s", n, out)
	}
	if got := printable(hostile); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStatus(t *testing.T) {
	cl := example()
	expect(t, "all", run(cl, "status"), `
Problem Node b: ApplyFailed: nftables refuses
Warning Node c: Silent: b receives its heartbeats no longer, or not by all paths, since 60s

No IPAddressPool: no Service gets an address.

ADDRESSES                SERVICES                  OWNER  SINCE  ANNOUNCED  REASON           NEXT
192.0.2.9                default/moving            a      3m     True       Owner            b (now)
192.0.2.10,2001:db8::10  default/web,default/web6  a      3m     True       Owner            b
192.0.2.200              shop/cart                 b      3m     False      NoLocalEndpoint  c
192.0.2.201              shop/none                 -      -      False      NoNodeMatches    -

NODE  FORWARDS  REASON       VIPS  ALIVE  INTERFACES        UPDATED
a     True      Programmed   2     2/2    eth0,eth1 (down)  1s
b     False     ApplyFailed  0     1/2    -                 120m
`)
	const one = `
No problem.

ADDRESSES                SERVICES                  OWNER  SINCE  ANNOUNCED  REASON  NEXT
192.0.2.10,2001:db8::10  default/web,default/web6  a      3m     True       Owner   b
`
	expect(t, "by address", run(cl, "status", "2001:DB8:0::10"), one)
	expect(t, "by Service", run(cl, "status", "default/web6"), one)
	expect(t, "of nothing", run(cl, "status", "192.0.2.99"), "error: nothing is named 192.0.2.99: write an address, NAMESPACE/SERVICE, node, BGPPeer or pool")
	expect(t, "empty", run(cluster(), "status"), `
No problem.

No IPAddressPool: no Service gets an address.

No VirtualIP: no L2Advertisement selects an address of a Service. BGP requires none.

No SpeakerStatus: no speaker has reported yet.
`)
	if got := run(cl, "status", "-o", "json"); !strings.Contains(got, `"reason":"ApplyFailed"`) || !json.Valid([]byte(got)) {
		t.Errorf("json:\n%s", got)
	}
	if got := run(cl, "status", "-o", "yaml"); !strings.Contains(got, "reason: ApplyFailed\n") {
		t.Errorf("yaml:\n%s", got)
	}
	expect(t, "output", run(cl, "status", "-o", "table"), "error: -o table: write json, yaml or wide")
}

// Pools and sessions have their own columns and problems.
func TestTables(t *testing.T) {
	pool := &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan"}, Spec: v1alpha1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/28", "2001:db8::/124"}}}
	pool.Status = v1alpha1.IPAddressPoolStatus{AssignedIPv4: 3, AvailableIPv4: 13, AssignedIPv6: 1, AvailableIPv6: 15,
		CoolingDown: []v1alpha1.CoolingAddress{{Address: "192.0.2.1"}}, Conditions: []metav1.Condition{conditionOf("Ready", "True", "Ready", ""), conditionOf("Draining", "True", "HeldOutside", "default/old")}}
	sessions := []v1alpha1.SessionStatus{
		{Peer: "six", Address: "2001:db8::1", State: "Active", Since: ago(2 * time.Minute), Reason: "WrongASN", Message: "the router has AS 65001", PeerASN: 65001, Prefixes: 12},
		{Peer: "tor", Address: "192.0.2.1", State: "Established", Since: ago(time.Hour), Reason: "HoldTimeExpired", Message: "as it was before", Prefixes: 12, PeerASN: 4200000000,
			BFD: &v1alpha1.BFDStatus{State: "Up", Since: ago(time.Hour)}},
		{Peer: "up", State: "Established", Since: ago(time.Hour), BFD: &v1alpha1.BFDStatus{State: "Down", Since: ago(time.Minute), Reason: "BFDNotUp", Message: "a TTL of 63"}},
		{Peer: "part", State: "Established", Reason: "NotConfigured", Message: "no IPv6 InternalIP"},
	}
	speaker := func(name, other string, state v1alpha1.MemberState) *v1alpha1.SpeakerStatus {
		return &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}, BGP: &v1alpha1.BGPStatus{Sessions: sessions},
			Members: []v1alpha1.MemberStatus{{Node: other, State: state, Since: ago(time.Minute)}},
		}}
	}
	cl := cluster(pool, speaker("a", "b", v1alpha1.MemberSilent), speaker("b", "a", v1alpha1.MemberAlive))
	expect(t, "pools", run(cl, "pools"), `
Warning IPAddressPool lan: HeldOutside: default/old

POOL  READY  USED  FREE   COOLING  DRAINING  ADDRESSES
lan   True   3+1   13+15  1        yes       192.0.2.0/28,2001:db8::/124
`)
	expect(t, "sessions of a node that is gone, too", run(cl, "bgp"), `
Problem BGP session a to six: WrongASN: the router has AS 65001
Unknown BGP session b to six, b to tor, b to up, b to part: Silent: the speaker of its node is gone
Warning BGP session a to up: BFDNotUp: a TTL of 63
Warning BGP session a to part: NotConfigured: no IPv6 InternalIP

NODE  PEER  ADDRESS      ASN         SESSION      SINCE  PREFIXES  BFD       REASON
a     six   2001:db8::1  65001       Active       2m     -         -         WrongASN
a     tor   192.0.2.1    4200000000  Established  60m    12        Up 60m    -
a     up    -            -           Established  60m    0         Down 60s  BFDNotUp
a     part  -            -           Established  -      0         -         NotConfigured
b     six   2001:db8::1  65001       Unknown      -      -         -         Silent
b     tor   192.0.2.1    4200000000  Unknown      -      -         -         Silent
b     up    -            -           Unknown      -      -         -         Silent
b     part  -            -           Unknown      -      -         -         Silent
`)
	expect(t, "one peer", run(cl, "bgp", "tor"), `
Unknown BGP session b to tor: Silent: the speaker of its node is gone

NODE  PEER  ADDRESS    ASN         SESSION      SINCE  PREFIXES  BFD     REASON
a     tor   192.0.2.1  4200000000  Established  60m    12        Up 60m  -
b     tor   192.0.2.1  4200000000  Unknown      -      -         -       Silent
`)
	if got := run(cl, "nodes"); !strings.Contains(got, "Problem Node b: Silent: its speaker is gone") || !strings.Contains(got, "b     Unknown   Silent") {
		t.Errorf("nodes:\n%s", got)
	}
}

// The exit code distinguishes problems from what could not be read, and Ctrl-C from neither.
func TestExitCode(t *testing.T) {
	forbidden := interceptor.NewClient(cluster(), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
		if _, is := l.(*corev1.NodeList); is {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("not your business"))
		}
		return c.List(ctx, l, o...)
	}})
	broken := interceptor.NewClient(cluster(), interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return errors.New("no route to host")
	}})
	for name, test := range map[string]struct {
		cl   client.Client
		args string
		want int
	}{
		"healthy": {cluster(), "status", 0}, "problems": {example(), "status", 1}, "forbidden": {forbidden, "status", 2}, "no connection": {broken, "status", 2},
		"forbidden, one table": {forbidden, "pools", 2}, "unknown name": {example(), "nodes typo", 2},
		"wrong flag": {cluster(), "status --colour", 2}, "no Service": {cluster(), "explain svc nothing", 2}, "no command": {cluster(), "explain pod x", 2},
	} {
		var out bytes.Buffer
		cmd := command(func(*genericclioptions.ConfigFlags) (client.Client, error) { return test.cl, nil }, func() time.Time { return now })
		cmd.SetOut(&out)
		cmd.SetArgs(strings.Fields(test.args))
		if got := exitCode(&out, cmd.Execute()); got != test.want {
			t.Errorf("%s: exit code %d, want %d:\n%s", name, got, test.want, out.String())
		}
	}
}

func TestExplain(t *testing.T) {
	svc := func(name string) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
		s.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAllocated, "False", "NoPool", "No pool accepts the Service: create one")}
		return s
	}
	cl := cluster(svc("web"), svc("db"))
	const one = `
Service shop/web: Problem NoPool
  Class    -  OK       served by IronLB
  Address  -  Problem  NoPool: No pool accepts the Service: create one
  Pool     -  Info     NoPool: there is no IPAddressPool: create one
`
	expect(t, "one", run(cl, "explain", "svc", "web", "-n", "shop"), one)
	expect(t, "with a slash", run(cl, "explain", "service/web", "-n", "shop"), one)
	if got := run(cl, "explain", "svc", "-A"); strings.Count(got, "Problem NoPool\n") != 2 {
		t.Errorf("all:\n%s", got)
	}
	expect(t, "in another namespace", run(cl, "explain", "svc", "-n", "default"), "No Service with problems.")
	expect(t, "unknown", run(cl, "explain", "svc", "nothing", "-n", "shop"), "error: there is no Service nothing in namespace shop: name another namespace with -n")
	expect(t, "another kind", run(cl, "explain", "pod", "web"), `error: "pod web" is no Service: write svc NAME, with -n for its namespace`)
}

// TestExplainForbidden: a user who may list Services of one namespace only gets its explanations, with a note of what is
// not considered.
func TestExplainForbidden(t *testing.T) {
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	web.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAllocated, "False", "NoPool", "No pool accepts the Service: create one")}
	cl := interceptor.NewClient(cluster(web), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
		var options client.ListOptions
		options.ApplyOptions(o)
		switch l.(type) {
		case *corev1.ServiceList, *discoveryv1.EndpointSliceList:
			if options.Namespace != "shop" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("not in all namespaces"))
			}
		}
		return c.List(ctx, l, o...)
	}})
	one := run(cl, "explain", "svc", "web", "-n", "shop")
	if !strings.Contains(one, "Service shop/web: Problem NoPool\n") || !strings.Contains(one, "Services of other namespaces are not considered: ") {
		t.Errorf("one Service:\n%s", one)
	}
	if got := run(cl, "explain", "svc", "-n", "shop"); got != one {
		t.Errorf("all of the namespace:\n%s", got)
	}
	for _, args := range [][]string{{"svc", "-A", "-n", "shop"}, {"svc", "web", "-n", "other"}} {
		if got := run(cl, append([]string{"explain"}, args...)...); !strings.HasPrefix(got, "error: ") || !strings.Contains(got, "not in all namespaces") {
			t.Errorf("%q:\n%s", args, got)
		}
	}
}

// TestWatch: --watch prints again after a change, and not because ages grow.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := vip("192.0.2.9", "default/web", "a b", "a", conditionOf("Announced", "True", "Owner", ""))
		v.Status.Since = ptr.To(metav1.Now())
		cl, out, done := cluster(v), &bytes.Buffer{}, make(chan int)
		ctx, stop := context.WithCancel(t.Context())
		cmd := command(func(*genericclioptions.ConfigFlags) (client.Client, error) { return cl, nil }, time.Now)
		cmd.SetOut(out)
		cmd.SetArgs([]string{"status", "--watch"})
		go func() { done <- exitCode(out, cmd.ExecuteContext(ctx)) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := strings.Count(out.String(), "192.0.2.9 "); n != 1 {
			t.Errorf("within an hour without a change it prints %d times:\n%.2000s", n, out)
		}
		out.Reset()
		if err := cl.Get(t.Context(), client.ObjectKeyFromObject(v), v); err != nil {
			t.Fatal(err)
		}
		v.Status.Node = "b"
		if err := cl.Status().Update(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * watchEvery)
		synctest.Wait()
		if got := out.String(); strings.Count(got, "192.0.2.9 ") != 1 || !strings.Contains(got, " b      60m ") {
			t.Errorf("after a change:\n%s", got)
		}
		stop()
		if code := <-done; code != 0 {
			t.Errorf("Ctrl-C: exit code %d", code)
		}
	})
}

// drain labels the node, and waits until it holds nothing.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		v := vip("192.0.2.10", "default/web", "b a", "a")
		speaker := &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.SpeakerStatusStatus{
			BGP: &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "tor", State: "Established", Prefixes: 1}}}}}
		cl := cluster(node, v, speaker)
		expect(t, "in vain", run(cl, "drain", "a", "--wait", "3s"), `
a: excluded from all addresses
a: owns 1 VirtualIPs (192.0.2.10) and announces 1 prefixes
error: a still owns 1 VirtualIPs (192.0.2.10) and announces 1 prefixes after 3s: see kubectl ironlb status a`)
		change := func(after time.Duration, o client.Object, f func()) {
			time.AfterFunc(after, func() {
				if err := cl.Get(context.Background(), client.ObjectKeyFromObject(o), o); err != nil {
					t.Error(err)
				}
				f()
				if err := cl.Status().Update(context.Background(), o); err != nil {
					t.Error(err)
				}
			})
		}
		change(2*time.Second, v, func() { v.Status.Node = "b" })
		change(4*time.Second, speaker, func() { speaker.Status.BGP.Sessions[0].Prefixes = 0 })
		expect(t, "done", run(cl, "drain", "a"), `
a: excluded from all addresses
a: owns 1 VirtualIPs (192.0.2.10) and announces 1 prefixes
a: owns 0 VirtualIPs and announces 1 prefixes
a: holds nothing`)
		label := func() string {
			if err := cl.Get(t.Context(), client.ObjectKey{Name: "a"}, node); err != nil {
				t.Fatal(err)
			}
			return node.Labels[corev1.LabelNodeExcludeBalancers]
		}
		if got := label(); got != "true" {
			t.Errorf("label %q", got)
		}
		expect(t, "undo", run(cl, "drain", "a", "--undo"), "a: may have addresses again")
		if got := label(); got != "" {
			t.Errorf("label %q", got)
		}
		if got := run(cl, "drain", "nowhere"); !strings.Contains(got, "error: labelling Node nowhere: ") {
			t.Error(got)
		}
	})
}

func TestReallocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}
		svc.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAddresses, "True", "Recorded", "192.0.2.10=lan"),
			conditionOf(v1alpha1.ConditionAllocated, "True", "Draining", "no pool accepts it")}
		none := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "none"}}
		cl := cluster(svc, none)
		expect(t, "in vain", run(cl, "reallocate", "svc", "web", "-n", "shop", "--wait", "2s"), `
svc/web: reallocation of 192.0.2.10 requested
error: svc/web is not done: Draining: no pool accepts it`)
		time.AfterFunc(time.Second, func() {
			if err := cl.Get(context.Background(), client.ObjectKeyFromObject(svc), svc); err != nil {
				t.Error(err)
			}
			svc.Status.LoadBalancer.Ingress[0].IP = "192.0.2.20"
			svc.Status.Conditions = append(svc.Status.Conditions, conditionOf("ironlb.io/Reallocated", "True", "Reallocated", svc.Annotations["ironlb.io/reallocate"]))
			if err := cl.Status().Update(context.Background(), svc); err != nil {
				t.Error(err)
			}
		})
		expect(t, "done", run(cl, "reallocate", "svc", "web", "-n", "shop", "--wait", "5s"), "svc/web: reallocation of 192.0.2.10 requested\nsvc/web: 192.0.2.20")
		if got := run(cl, "reallocate", "svc", "none", "-n", "shop"); !strings.Contains(got, "error: no address of IronLB on Service shop/none") {
			t.Error(got)
		}
	})
}

// The arguments of ironlb-ccm change what a diagnosis expects.
func TestSettings(t *testing.T) {
	s := settingsOf([]string{"--load-balancer-class=x/y", "--only-class", "--ip-mode=VIP", "--forwarding=direct", "--ignore-exclude-lb=true", "--v=2"})
	if s.Class != "x/y" || !s.OnlyClass || s.IPMode != "VIP" || s.Forwarding != v1alpha1.ForwardingDirect || !s.IgnoreExclude {
		t.Errorf("%+v", s)
	}
}

// While ironlb-ccm does not run, that is the cause for Services that it has not processed.
func TestControllerDown(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: "ironlb-ccm"}}
	lease := &coordinationv1.Lease{ObjectMeta: d.ObjectMeta}
	if got := run(cluster(d, lease), "status"); !strings.Contains(got, "Problem Cluster ironlb-ccm: NotReady: no replica of Deployment ironlb-system/ironlb-ccm is available") {
		t.Error(got)
	}
	d.Status.AvailableReplicas, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = 1, ptr.To(int32(15)), &metav1.MicroTime{Time: now.Add(-time.Minute)}
	if got := run(cluster(d, lease), "status"); !strings.Contains(got, "no replica has renewed Lease ironlb-system/ironlb-ccm for 60s") {
		t.Error(got)
	}
	lease.Spec.RenewTime.Time = now.Add(-20 * time.Second)
	if got := run(cluster(d, lease), "status"); !strings.Contains(got, "No problem.") {
		t.Error(got)
	}
}

func TestRebalance(t *testing.T) {
	pool := func(name string) *v1alpha1.IPAddressPool {
		return &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	cl := cluster(pool("web"), pool("192.0.2.10"), vip("192.0.2.10,2001:db8::10", "default/web", "a b", "a"))
	requested := func() string {
		var out []string
		for _, o := range []client.Object{pool("web"), pool("192.0.2.10"), vip("192.0.2.10", "a/b", "", "")} {
			if err := cl.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				t.Fatal(err)
			}
			value, was := o.GetAnnotations()[v1alpha1.AnnotationRebalance]
			out = append(out, value)
			if was {
				o.SetAnnotations(nil)
				if err := cl.Update(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
		}
		return strings.Join(out, " ")
	}
	const value = "2026-01-02T03:04:05Z"
	expect(t, "a pool", run(cl, "rebalance", "web"), "ippool/web: rebalance requested")
	expect(t, "annotations", requested(), value)
	expect(t, "an address", run(cl, "rebalance", "2001:db8::10"), "vip/192.0.2.10: rebalance requested")
	expect(t, "annotations", requested(), value)
	expect(t, "all", run(cl, "rebalance"), "ippool/192.0.2.10: rebalance requested\nippool/web: rebalance requested")
	expect(t, "annotations", requested(), value+" "+value)
	expect(t, "two meanings", run(cl, "rebalance", "192.0.2.10"), "error: 192.0.2.10 is ambiguous: use vip/192.0.2.10 or ippool/192.0.2.10")
	expect(t, "ambiguous name", run(cl, "rebalance", "vip/192.0.2.10"), "vip/192.0.2.10: rebalance requested")
	requested()
	expect(t, "unknown", run(cl, "rebalance", "web", "nowhere"), "error: nowhere is neither an IPAddressPool nor an address of a VirtualIP: see kubectl get ippool,vip")
	expect(t, "annotations", requested(), "")
	expect(t, "no pool", run(cluster(), "rebalance"), "error: there is no IPAddressPool: nothing to rebalance")
}

// TestWait: --wait returns once the controller has responded, or reports that it has not.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := cluster(&v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
		expect(t, "in vain", run(cl, "rebalance", "--wait", "10s"), `
ippool/web: rebalance requested
error: ippool/web is not done yet: set a longer --wait, and see kubectl ironlb status and the log of ironlb-ccm
`)
		start := time.Now()
		time.AfterFunc(4*time.Second, func() {
			var pool v1alpha1.IPAddressPool
			if err := cl.Get(context.Background(), client.ObjectKey{Name: "web"}, &pool); err != nil {
				t.Error(err)
			}
			pool.Status.Rebalanced = pool.Annotations[v1alpha1.AnnotationRebalance]
			if err := cl.Status().Update(context.Background(), &pool); err != nil {
				t.Error(err)
			}
		})
		expect(t, "answered", run(cl, "rebalance", "--wait", "1m"), "ippool/web: rebalance requested\nippool/web: done")
		if took := time.Since(start); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"status", "--help"}, {"explain", "--help"}, {"drain", "--help"}, {"ui", "--help"}, {"import", "metallb", "--help"}, {"connectivity", "test", "--help"}, {"rebalance", "--help"}} {
		got := run(nil, args...)
		if !strings.Contains(got, "kubectl ironlb "+strings.TrimPrefix(args[0], "--help")) || !strings.Contains(got, "--kubeconfig") {
			t.Errorf("%v:\n%s", args, got)
		}
	}
}

// TestVersion: --client requires no cluster; without it the images of the programs follow.
func TestVersion(t *testing.T) {
	want := "kubectl ironlb version " + version.String() + "\n"
	for _, args := range []string{"version --client", "--version"} {
		expect(t, args, run(nil, strings.Fields(args)...), want)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: "ironlb-ccm"}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Image: "localhost/ironlb/ironlb-ccm:v0.1.0"}}
	expect(t, "both", run(cluster(d), "version"), want+"ironlb-ccm image localhost/ironlb/ironlb-ccm:v0.1.0")
	expect(t, "not installed", run(cluster(), "version"), want+"error: namespace ironlb-system has no Deployment ironlb-ccm: name the namespace of IronLB with --ironlb-namespace")
}

// TestDoctor: the problems come first, with the nodes that share them, then a table of the checks; -o wide has each
// check of each node. The exit code is that of the worst outcome.
func TestDoctor(t *testing.T) {
	speaker := func(name, other string, conditions ...metav1.Condition) *v1alpha1.SpeakerStatus {
		return &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}, Members: []v1alpha1.MemberStatus{{Node: other, State: v1alpha1.MemberAlive}}, Conditions: conditions,
		}}
	}
	wrong := conditionOf("KernelParametersSet", "False", "KernelParameterWrong", "set sysctl net.ipv4.ip_forward=1")
	fine := conditionOf("KernelParametersSet", "True", "AllSet", "the kernel parameters have the required values")
	late := conditionOf("DeadlineScheduling", "False", "NoDeadline", "add CAP_SYS_NICE")
	ill := cluster(speaker("a", "b", wrong), speaker("b", "a", wrong, late))
	expect(t, "problems", run(ill, "doctor"), `
Problem KernelParametersSet a, b: KernelParameterWrong: set sysctl net.ipv4.ip_forward=1
Warning DeadlineScheduling b: NoDeadline: add CAP_SYS_NICE

CHECK                OK  NOT OK
DataPlaneProgrammed  2   -
DeadlineScheduling   0   b
Heartbeats           2   -
KernelParametersSet  0   a, b
MTU                  2   -
Reachability         2   -
Reporting            2   -
`)
	expect(t, "of a node", run(cluster(speaker("a", "b", wrong), speaker("b", "a", fine)), "doctor", "b", "-o", "wide"), `
No problem.

NODE  CHECK                STATE  REASON  MESSAGE
b     DataPlaneProgrammed  OK     -       the node is programmed as planned
b     Heartbeats           OK     -       receives the other speakers
b     KernelParametersSet  OK     AllSet  the kernel parameters have the required values
b     MTU                  OK     -       the MTU is that of the other nodes
b     Reachability         OK     -       no node is unreachable
b     Reporting            OK     -       the speaker reports
`)
	expect(t, "of no node", run(ill, "doctor", "d"), "error: node d has no speaker: nodes with one are a, b")
	expect(t, "without a node", run(cluster(), "doctor"), "error: no node has a speaker: name the namespace of IronLB with --ironlb-namespace")
	if got := run(ill, "doctor", "-o", "json"); !strings.Contains(got, `{"kind":"KernelParametersSet","state":"Problem","reason":"KernelParameterWrong","message":"set sysctl net.ipv4.ip_forward=1","objects":["a","b"]}`) {
		t.Errorf("json:\n%s", got)
	}
	unread := interceptor.NewClient(cluster(speaker("a", "b", fine), speaker("b", "a", fine)), interceptor.Funcs{
		List: func(ctx context.Context, cl client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if _, is := list.(*corev1.PodList); is {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no right"))
			}
			return cl.List(ctx, list, o...)
		}})
	for want, cl := range map[int]client.Client{0: cluster(speaker("a", "b", fine), speaker("b", "a", late)), exitProblems: ill, exitError: unread} {
		cmd := command(func(*genericclioptions.ConfigFlags) (client.Client, error) { return cl, nil }, func() time.Time { return now })
		cmd.SetOut(io.Discard)
		cmd.SetArgs([]string{"doctor"})
		if got := exitCode(io.Discard, cmd.ExecuteContext(t.Context())); got != want {
			t.Errorf("exit code %d, want %d", got, want)
		}
	}
}
