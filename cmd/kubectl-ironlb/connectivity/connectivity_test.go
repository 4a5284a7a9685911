package connectivity

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/cmd/internal/echo"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

var (
	four = netip.MustParseAddr("192.0.2.10")
	six  = netip.MustParseAddr("2001:db8::10")
)

func names(tests []Test) (out []Name) {
	for _, t := range tests {
		out = append(out, t.Name)
	}
	return out
}

func TestSelect(t *testing.T) {
	for _, test := range []struct {
		names     []string
		requested []Name
		want      []Name
	}{
		{nil, nil, []Name{L2, BGP, DualStack, Hairpin, SourceRanges, Local}},
		{nil, []Name{Failover}, []Name{L2, BGP, DualStack, Hairpin, SourceRanges, Local, Failover}},
		{[]string{"hairpin", "l2"}, nil, []Name{L2, Hairpin}},
		{[]string{"l2"}, []Name{FromHere}, []Name{L2, FromHere}},
		{[]string{"failover"}, nil, []Name{Failover}},
	} {
		got, err := Select(test.names, test.requested...)
		if err != nil || !slices.Equal(names(got), test.want) {
			t.Errorf("%v %v: %v, %v", test.names, test.requested, names(got), err)
		}
	}
	if _, err := Select([]string{"l3"}); err == nil || !strings.HasPrefix(err.Error(), `--tests: there is no test "l3": name one of l2, bgp,`) {
		t.Error(err)
	}
}

func node(name string, change func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1" + name}}
	if change != nil {
		change(&n)
	}
	return n
}

func TestNodes(t *testing.T) {
	all := []corev1.Node{
		node("5", nil), node("4", nil), node("3", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "control-plane"}} }),
		node("2", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		node("1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
		node("0", func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "windows" }),
	}
	if got, err := Nodes(all); err != nil || !slices.Equal(got, []string{"4", "5", "3"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Nodes(append(all, node("6", nil))); err != nil || !slices.Equal(got, []string{"4", "5", "6"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Nodes(all[3:]); err == nil {
		t.Error(got)
	}
}

func pool(name string, addresses ...string) v1alpha1.IPAddressPool {
	return v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPAddressPoolSpec{Addresses: addresses}}
}

func TestFamilies(t *testing.T) {
	reserved := pool("reserved", "192.0.2.0/28", "2001:db8::/64")
	reserved.Spec.AutoAssign = ptr.To(false)
	all := []v1alpha1.IPAddressPool{pool("a", "192.0.2.10-192.0.2.20"), reserved}
	if got := Families(all, ""); !slices.Equal(got, []corev1.IPFamily{corev1.IPv4Protocol}) {
		t.Error(got)
	}
	if got := Families(all, "reserved"); len(got) != 2 {
		t.Error(got)
	}
	for name, c := range map[string]*diagnose.Cluster{"no pool": {}, "another pool": {Pools: all}} {
		if err := Preconditions(c, "b"); err == nil || !strings.Contains(err.Error(), "there is no IPAddressPool") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Preconditions(&diagnose.Cluster{Pools: all}, "a"); err != nil {
		t.Error(err)
	}
}

// served returns a cluster with a Service that has an address, and what announces it.
func served(l2, bgp bool) (*diagnose.Cluster, *corev1.Service) {
	svc := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Web, Labels: map[string]string{"app": Web}}}
	svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}
	svc.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionAddresses, Status: metav1.ConditionTrue, Message: four.String() + "=a"},
		{Type: v1alpha1.ConditionAllocated, Status: metav1.ConditionTrue, Reason: "Allocated"},
	}
	c := &diagnose.Cluster{Services: []corev1.Service{svc}, Pools: []v1alpha1.IPAddressPool{pool("a", "192.0.2.0/28")},
		Nodes: []corev1.Node{node("1", nil), node("2", nil), node("3", nil)}}
	if l2 {
		c.L2 = []v1alpha1.L2Advertisement{{ObjectMeta: metav1.ObjectMeta{Name: "all"}}}
	}
	if bgp {
		c.BGP = []v1alpha1.BGPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "all"}}}
	}
	v := v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: four.String()}}
	v.Spec.Addresses, v.Spec.Nodes, v.Status.Node = []string{four.String()}, []string{"1", "2", "3"}, "1"
	c.VirtualIPs = []v1alpha1.VirtualIP{v}
	for _, name := range []string{"1", "2", "3"} {
		c.Speakers = append(c.Speakers, v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1alpha1.SpeakerStatusStatus{DataPlane: v1alpha1.DataPlaneStatus{Healthy: name != "2"}}})
	}
	return c, &c.Services[0]
}

func TestSkip(t *testing.T) {
	layer2, svc := served(true, false)
	routed, svcOfRouted := served(false, true)
	both, svcOfBoth := served(true, true)
	both.Peers = []v1alpha1.BGPPeer{{ObjectMeta: metav1.ObjectMeta{Name: "tor"}}}
	nothing, svcOfNothing := served(false, false)
	dual, svcOfDual := served(true, false)
	dual.Pools[0].Spec.Addresses = append(dual.Pools[0].Spec.Addresses, "2001:db8::/64")
	ports, svcOfPorts := served(true, false)
	ports.Settings.Forwarding = v1alpha1.ForwardingNodePort
	for _, test := range []struct {
		name Name
		c    *diagnose.Cluster
		svc  *corev1.Service
		want string
	}{
		{L2, layer2, svc, ""}, {L2, both, svcOfBoth, ""}, {L2, routed, svcOfRouted, "only BGPAdvertisements cover"},
		{L2, nothing, svcOfNothing, ""}, // it fails
		{Failover, layer2, svc, ""}, {Failover, routed, svcOfRouted, "no L2Advertisement"},
		{BGP, layer2, svc, "there is no BGPPeer"}, {BGP, both, svcOfBoth, ""},
		{DualStack, layer2, svc, "the pools have only IPv4 addresses"}, {DualStack, dual, svcOfDual, "the cluster has only IPv4 Services"},
		{Local, layer2, svc, ""}, {Local, ports, svcOfPorts, "forwarding nodeport"}, {Hairpin, nothing, svcOfNothing, ""},
	} {
		if got := Skip(test.name, test.c, test.svc, ""); test.want == "" != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	svcOfDual.Spec.IPFamilies = append(svcOfDual.Spec.IPFamilies, corev1.IPv6Protocol)
	if got := Skip(DualStack, dual, svcOfDual, ""); got != "" {
		t.Error(got)
	}
}

func TestSessions(t *testing.T) {
	c, _ := served(false, true)
	session := func(state v1alpha1.SessionState) *v1alpha1.BGPStatus {
		return &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "tor", State: state, Reason: "HoldTimeExpired"}}}
	}
	c.Speakers[0].Status.BGP, c.Speakers[1].Status.BGP = session(v1alpha1.SessionEstablished), session("Active")
	if got := Sessions(c); !slices.Equal(got, []string{"BGP session 2 to tor: HoldTimeExpired: state Active"}) || Established(c) != 1 {
		t.Errorf("%q, %d established", got, Established(c))
	}
}

func TestSuccessor(t *testing.T) {
	c, _ := served(true, false)
	if owner := Owner(c, four); owner != "1" || Owner(c, six) != "" {
		t.Error(owner)
	}
	if _, to := Successor(c, four); to == nil || to.Name != "3" { // 2 does not forward
		t.Error(to)
	}
	c.Nodes[2].Spec.Unschedulable = true
	if _, to := Successor(c, four); to != nil {
		t.Error(to.Name)
	}
}

// The advertisement of a failover adds neither a node nor an interface to the others.
func TestPreferring(t *testing.T) {
	c, svc := served(true, false)
	c.L2[0].Spec.Interfaces = []string{"eth1"}
	other := v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	other.Spec.IPAddressPools = []string{"b"}
	c.L2 = append(c.L2, other)
	ad, err := Preferring(c, svc, &c.Nodes[2])
	if err != nil {
		t.Fatal(err)
	}
	selector := metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: "3"}}
	want := v1alpha1.L2AdvertisementSpec{IPAddressPools: []string{"a"}, Interfaces: []string{"eth1"},
		ServiceSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"app": Web}}}, NodeSelectors: []metav1.LabelSelector{selector},
		PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{{Weight: 100, Preference: selector}}}
	if !reflect.DeepEqual(ad.Spec, want) {
		t.Errorf("%+v", ad.Spec)
	}
	elsewhere := v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}
	elsewhere.Spec.Interfaces = []string{"eth2"}
	elsewhere.Spec.NodeSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{corev1.LabelHostname: "1"}}}
	bySubnet := elsewhere.DeepCopy()
	bySubnet.Spec.Interfaces = nil
	c.L2 = append(c.L2, elsewhere, *bySubnet)
	if ad, err := Preferring(c, svc, &c.Nodes[2]); err != nil || !reflect.DeepEqual(ad.Spec, want) {
		t.Errorf("with those of other nodes: %v, %v", ad, err)
	}
	c.L2[1].Spec.IPAddressPools = nil // announced in the subnet of the address, too
	if ad, err := Preferring(c, svc, &c.Nodes[2]); err != nil || len(ad.Spec.Interfaces) > 0 {
		t.Errorf("%v, %v", ad, err)
	}
	delete(c.Nodes[2].Labels, corev1.LabelHostname)
	if ad, err := Preferring(c, svc, &c.Nodes[2]); err == nil {
		t.Error(ad)
	}
}

// The objects depend on the tests: Pods in the network of a node only for those that need them.
func TestScene(t *testing.T) {
	describe := func(s Scene) (out []string) {
		out = append(out, s.Namespace().Labels["pod-security.kubernetes.io/enforce"])
		for _, p := range s.Pods() {
			text := p.Name + " " + p.Spec.NodeName
			if p.Spec.HostNetwork {
				text += " hostNetwork"
			}
			out = append(out, text)
		}
		for _, svc := range s.Services([]netip.Addr{four, six}) {
			text := svc.Name + " " + string(svc.Spec.ExternalTrafficPolicy) + strings.Join(svc.Spec.LoadBalancerSourceRanges, ",")
			out = append(out, strings.TrimSpace(text))
		}
		return out
	}
	all, err := Select(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		nodes []string
		tests []Test
		want  []string
	}{
		{[]string{"a", "b", "c"}, all, []string{"privileged", "server a", "client a", "other a", "remote b", "host-1 a hostNetwork", "host-2 b hostNetwork",
			"host-3 c hostNetwork", "web", "restricted 192.0.2.10/32,2001:db8::10/128", "local Local"}},
		{[]string{"a", "b"}, []Test{{Name: Hairpin}}, []string{"restricted", "server a", "client a", "remote b", "web"}},
		{[]string{"a"}, []Test{{Name: FromHere}}, []string{"restricted", "server a", "client a", "web", "local Local"}},
	} {
		if got := describe(Scene{Nodes: test.nodes, Tests: test.tests}); !slices.Equal(got, test.want) {
			t.Errorf("%v:\n%q, want\n%q", names(test.tests), got, test.want)
		}
	}
	svc := (&Scene{Pool: "a", Class: "x/y", Nodes: []string{"a"}}).Services(nil)[0]
	if svc.Annotations[v1alpha1.AnnotationPool] != "a" || *svc.Spec.LoadBalancerClass != "x/y" || !Ours(svc) {
		t.Errorf("%+v", svc)
	}
}

func TestTransfers(t *testing.T) {
	const out = `{"body": "server", "ok": true, "took": 12000000}
{"ok": false, "took": 3000000000, "error": "no answer within 3s"}
panic: this is no result
{"body": "x", "ok": false, "took": 100000000, "error": "HTTP status 503"}
{"body": "server", "ok": true, "took": 1`
	got := Transfers([]byte(out))
	want := []echo.Transfer{
		{Body: "server", OK: true, Took: 12 * time.Millisecond},
		{Took: 3 * time.Second, Error: "no answer within 3s"},
		{Body: "x", Took: 100 * time.Millisecond, Error: "HTTP status 503"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if text := Result(got); text != `1 of 3: "server"; 1 of 3: HTTP status 503; 1 of 3: no answer within 3s` {
		t.Error(text)
	}
	if argv := strings.Join(Request(URL(six, 80, "/hostname"), 4, 20), " "); argv != "ironlb-speaker echo request --count 4 --per-second 20 http://[2001:db8::10]:80/hostname" {
		t.Error(argv)
	}
}

func TestVerdicts(t *testing.T) {
	yes, other := echo.Transfer{Body: Server, OK: true}, echo.Transfer{Body: "web-1", OK: true}
	timeout, refused, unavailable := echo.Transfer{Error: "Connection timed out"}, echo.Transfer{Error: "Connection refused"}, echo.Transfer{Error: "HTTP status 503"}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"answered":      {Answered([]echo.Transfer{yes, yes}, 2), ""},
		"once not":      {Answered([]echo.Transfer{yes, timeout}, 2), "not every request was answered by Pod server: 1 of 2: \"server\"; 1 of 2: Connection timed out"},
		"by another":    {Answered([]echo.Transfer{other}, 1), `not every request was answered by Pod server: "web-1"`},
		"cut off":       {Answered([]echo.Transfer{yes}, 2), "1 of 2 requests were made"},
		"dropped":       {Refused([]echo.Transfer{timeout, refused}), ""},
		"not dropped":   {Refused([]echo.Transfer{timeout, yes}), `the address answers a client that it must not answer: 1 of 2: "server"; 1 of 2: Connection timed out`},
		"answered 503":  {Refused([]echo.Transfer{unavailable}), "the address answers a client that it must not answer: HTTP status 503"},
		"none":          {Refused(nil), "no request was made"},
		"one":           {One(map[string][]string{"a": {"eth0"}}, "a"), ""},
		"two":           {One(map[string][]string{"a": nil, "b": nil}, "a"), "more than one speaker announces it: a, b"},
		"no announcer":  {One(nil, "a"), "no speaker announces it, though a owns it"},
		"another owner": {One(map[string][]string{"b": nil}, "a"), "b announces it, and a owns it"},
	} {
		got := ""
		if test.err != nil {
			got = test.err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestSeen(t *testing.T) {
	at := func(text string) echo.Transfer { return echo.Transfer{Body: text, OK: true} }
	if got, err := Seen([]echo.Transfer{at("192.0.2.10:4711"), at("192.0.2.10:4712")}); err != nil || got != four {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Seen([]echo.Transfer{at("[::ffff:192.0.2.10]:4711")}); err != nil || got != four {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range [][]echo.Transfer{nil, {at("server")}, {at("192.0.2.10:1"), at("192.0.2.11:1")}, {{Error: "timeout"}}} {
		if got, err := Seen(bad); err == nil {
			t.Errorf("%v: %v", bad, got)
		}
	}
	c, _ := served(true, false)
	_, mine, _ := net.ParseCIDR("192.0.2.10/24")
	mine.IP = net.ParseIP("192.0.2.10")
	for saw, want := range map[string]string{"192.0.2.10": "false <nil>", "198.51.100.1": "true <nil>",
		"192.0.2.13": "false the endpoint sees 192.0.2.13, an address of Node 3, in place of the client's"} {
		translated, err := Kept(netip.MustParseAddr(saw), []net.Addr{mine}, c)
		if got := fmt.Sprint(translated, err); got != want {
			t.Errorf("%s: %s, want %s", saw, got, want)
		}
	}
}

func TestGap(t *testing.T) {
	const interval = 50 * time.Millisecond
	answer := func(took time.Duration) echo.Transfer { return echo.Transfer{OK: true, Took: took} }
	lost := echo.Transfer{Took: 3 * time.Second, Error: "timeout"}
	for name, test := range map[string]struct {
		all    []echo.Transfer
		want   time.Duration
		failed int
	}{
		"none lost":         {[]echo.Transfer{answer(time.Millisecond), answer(time.Millisecond)}, interval, 0},
		"one sent again":    {[]echo.Transfer{answer(time.Millisecond), answer(time.Second), answer(time.Millisecond)}, time.Second, 0},
		"two lost":          {[]echo.Transfer{answer(time.Millisecond), lost, lost, answer(time.Millisecond)}, 6*time.Second + interval, 2},
		"never again":       {[]echo.Transfer{answer(time.Millisecond), lost}, 3 * time.Second, 1},
		"refused at once":   {[]echo.Transfer{{Error: "refused"}, {Error: "refused"}, answer(0)}, 3 * interval, 2},
		"nothing requested": {},
	} {
		if gap, failed := Gap(test.all, interval); gap != test.want || failed != test.failed {
			t.Errorf("%s: %s, %d failed, want %s, %d", name, gap, failed, test.want, test.failed)
		}
	}
}

func TestAnnounced(t *testing.T) {
	for announced, want := range map[string][]string{
		`"192.0.2.10": ["eth0", "eth1"], "2001:db8::10": ["eth0"]`: {"eth0", "eth1"}, "": nil, `"192.0.2.11": ["eth0"]`: nil,
	} {
		got, err := Announced([]byte(`{"speaker": {"loop": {"virtualIPs": [{"name": "x", "announced": {`+announced+`}}]}}}`), four)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", announced, got, err)
		}
	}
	for _, bad := range []string{"", "{}", `{"speaker": {"error": "the reconcile loop does not answer"}}`} {
		if got, err := Announced([]byte(bad), four); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
