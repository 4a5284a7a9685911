package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

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

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

func cluster(objects ...client.Object) client.WithWatch {
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		panic(err)
	}
	return fake.NewClientBuilder().WithScheme(sch).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.VirtualIP{}, &v1alpha1.IPAddressPool{}, &v1alpha1.SpeakerStatus{}).Build()
}

// run returns the output of the command, and its error in the last line.
func run(cl client.Client, args ...string) string {
	var out bytes.Buffer
	cmd := command(func(access) (client.Client, error) { return cl, nil }, func() time.Time { return now })
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		out.WriteString("error: " + err.Error() + "\n")
	}
	return out.String()
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got, want = strings.TrimSpace(got), strings.TrimSpace(want); got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func example() client.WithWatch {
	held := condition("Announced", "True", "Owner", "")
	return cluster(
		vip("192.0.2.10,2001:db8::10", "default/web,default/web6", "a b c", "a", held),
		vip("192.0.2.9", "default/moving", "b a c", "a", held),
		vip("192.0.2.200", "shop/cart", "b c", "b", condition("Announced", "False", "NoLocalEndpoint", "no ready endpoint on a node of the list"),
			condition("Conflict", "True", "ForeignClaim", "02:00:00:00:00:01 answers for 192.0.2.200 on eth0")),
		vip("192.0.2.201", "shop/none", "", "", condition("NoEligibleNode", "True", "NoNodeMatches", "label a node")),
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
		vip("192.0.2.9", "a/"+hostile, hostile, hostile, condition("Announced", "False", hostile, hostile)),
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
	const head = `
ADDRESSES                SERVICES                  OWNER  SINCE  ANNOUNCED  REASON           NEXT
192.0.2.9                default/moving            a      3m     True       Owner            b (now)
192.0.2.10,2001:db8::10  default/web,default/web6  a      3m     True       Owner            b
192.0.2.200              shop/cart                 b      3m     False      NoLocalEndpoint  c
192.0.2.201              shop/none                 -      -      False      NoNodeMatches    -

192.0.2.200: Announced=False NoLocalEndpoint: no ready endpoint on a node of the list
192.0.2.200: Conflict=True ForeignClaim: 02:00:00:00:00:01 answers for 192.0.2.200 on eth0
192.0.2.201: NoEligibleNode=True NoNodeMatches: label a node

NODE  FORWARDS  REASON       VIPS  ALIVE  INTERFACES        UPDATED
a     True      Programmed   2     2/2    eth0,eth1 (down)  1s
b     False     ApplyFailed  0     1/2    -                 120m

b: does not forward: ApplyFailed: nftables refuses
b: member c is Silent since 60s
`
	cl := example()
	expect(t, "all", run(cl, "status"), head)
	const one = `
ADDRESSES                SERVICES                  OWNER  SINCE  ANNOUNCED  REASON  NEXT
192.0.2.10,2001:db8::10  default/web,default/web6  a      3m     True       Owner   b
`
	expect(t, "by address", run(cl, "status", "2001:DB8:0::10"), one)
	expect(t, "by Service", run(cl, "status", "default/web6"), one)
	if got := run(cl, "status", "a"); strings.Count(got, "\n") != 3 {
		t.Errorf("by node:\n%s", got)
	}
	expect(t, "of nothing", run(cl, "status", "192.0.2.99"), "error: there is no VirtualIP of 192.0.2.99, and no BGP session (addresses announced only by BGP have no VirtualIP, and no problem is reported for them): see kubectl ironlb status")
	expect(t, "empty", run(cluster(), "status"), `
No VirtualIP: no L2Advertisement selects an address of a Service. BGP requires none.

No SpeakerStatus: no speaker has reported yet.
`)
}

// The last status of a dead node is not shown as current.
func TestStatusOfADeadNode(t *testing.T) {
	speaker := func(name, other string, state v1alpha1.MemberState) *v1alpha1.SpeakerStatus {
		return &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}, Alive: "?", Updated: ago(time.Hour),
			Members: []v1alpha1.MemberStatus{{Node: other, State: state, Since: ago(time.Minute)}},
		}}
	}
	got := run(cluster(speaker("a", "b", v1alpha1.MemberSilent), speaker("b", "a", v1alpha1.MemberAlive)), "status")
	expect(t, "two nodes", got, `
No VirtualIP: no L2Advertisement selects an address of a Service. BGP requires none.

NODE  FORWARDS  REASON  VIPS  ALIVE  INTERFACES  UPDATED
a     True      -       0     ?      -           60m
b     Unknown   Silent  0     ?      -           60m

a: member b is Silent since 60s
`)
	ended := speaker("a", "b", v1alpha1.MemberAlive)
	ended.Status.Stopped = ago(time.Minute)
	expect(t, "one that has stopped", run(cluster(ended, speaker("b", "a", v1alpha1.MemberAlive)), "status"), `
No VirtualIP: no L2Advertisement selects an address of a Service. BGP requires none.

NODE  FORWARDS  REASON   VIPS  ALIVE  INTERFACES  UPDATED
a     Unknown   Stopped  0     ?      -           60m
b     True      -        0     ?      -           60m
`)
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
	for _, args := range [][]string{{"--help"}, {"status", "--help"}, {"rebalance", "--help"}} {
		got := run(nil, args...)
		if !strings.Contains(got, "kubectl ironlb "+strings.TrimPrefix(args[0], "--help")) || !strings.Contains(got, "--kubeconfig") {
			t.Errorf("%v:\n%s", args, got)
		}
	}
}

// If the liveness thread may be late, status shows that with the reason.
func TestStatusShowsTheSchedulingClass(t *testing.T) {
	speaker := func(name string, l *v1alpha1.LivenessStatus) *v1alpha1.SpeakerStatus {
		return &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}, Alive: "2/2", Updated: ago(time.Minute), Liveness: l,
		}}
	}
	const refused = "SCHED_DEADLINE: operation not permitted"
	got := run(cluster(
		speaker("a", &v1alpha1.LivenessStatus{SchedulingClass: v1alpha1.SchedulingDeadline}),
		speaker("b", &v1alpha1.LivenessStatus{SchedulingClass: v1alpha1.SchedulingNice, Message: refused}),
		speaker("c", nil),
	), "status")
	_, problems, _ := strings.Cut(got, "\nc ")
	_, problems, _ = strings.Cut(problems, "\n\n")
	if want := "b: liveness thread has scheduling class Nice, not Deadline: " + refused + "\n"; problems != want {
		t.Errorf("problems are %q, want %q, of\n%s", problems, want, got)
	}
}

// TestStatusShowsUnreachableNodes: nodes without a witness and a node that may be cut off are shown as well, but
// nothing about a stopped speaker.
func TestStatusShowsUnreachableNodes(t *testing.T) {
	status := v1alpha1.SpeakerStatusStatus{
		DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}, Alive: "1/2", Updated: ago(time.Second), CutOff: true,
		Unreachable: []v1alpha1.UnreachableStatus{
			{Node: "c", Since: *ago(time.Minute), Silent: []v1alpha1.Witness{"ICMPEcho", "Neighbor"}, Endpoints: 3},
			{
				Node: "d", Since: *ago(time.Hour), Silent: []v1alpha1.Witness{"ICMPEcho"}, Gateway: "192.0.2.254",
				EndpointsFailedOpen: 2, Damped: true,
			},
		},
		WithoutWitness: []string{"e"},
	}
	stopped := status
	stopped.Stopped = ago(time.Minute)
	speaker := func(name string, s v1alpha1.SpeakerStatusStatus) *v1alpha1.SpeakerStatus {
		return &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: s}
	}
	got := run(cluster(speaker("a", status), speaker("b", stopped)), "status")
	_, problems, _ := strings.Cut(got, "\nb ")
	_, problems, _ = strings.Cut(problems, "\n\n")
	want := `a: node c is unreachable since 60s (silent: ICMPEcho, Neighbor): 3 endpoints take no new connections
a: node d is unreachable since 60m (silent: ICMPEcho): 0 endpoints take no new connections; gateway 192.0.2.254 answers; 2 endpoints take connections because no other is left; reachable again, too often to count yet
a: may be cut off: most other nodes became unreachable at once, and no gateway answers
a: node e answers neither ICMP echo nor ARP: its death is detected by Kubernetes only
`
	if problems != want {
		t.Errorf("problems are\n%s\nwant\n%s\nof\n%s", problems, want, got)
	}
}

// TestVersion: the version requires no cluster.
func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		var out bytes.Buffer
		cmd := command(func(access) (client.Client, error) { return nil, errors.New("no cluster") }, time.Now)
		cmd.SetOut(&out)
		cmd.SetArgs([]string{arg})
		if err := cmd.Execute(); err != nil {
			t.Fatalf("%s: %v", arg, err)
		}
		if got, want := out.String(), "kubectl ironlb version "+version.String()+"\n"; got != want {
			t.Errorf("%s prints %q, want %q", arg, got, want)
		}
	}
}
