package bgpstatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func bgpPeer(name string, change ...func(*v1alpha1.BGPPeer)) v1alpha1.BGPPeer {
	p := v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("peer-" + name), Generation: 1}}
	p.Spec = v1alpha1.BGPPeerSpec{MyASN: 64512, PeerASN: ptr.To[int64](64512), PeerAddress: "192.0.2.1"}
	for _, f := range change {
		f(&p)
	}
	return p
}

// speaker reports sessions in the form peer=state/reason/message, with "+BFD: message" at the end if BFD is not up.
func speaker(node string, sessions ...string) v1alpha1.SpeakerStatus {
	s := v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: node}}
	for _, text := range sessions {
		peer, rest, _ := strings.Cut(text, "=")
		state, rest, _ := strings.Cut(rest, "/")
		reason, message, _ := strings.Cut(rest, "/")
		message, why, unwatched := strings.Cut(message, "+BFD: ")
		if s.Status.BGP == nil {
			s.Status.BGP = &v1alpha1.BGPStatus{}
		}
		s.Status.BGP.Sessions = append(s.Status.BGP.Sessions, v1alpha1.SessionStatus{Peer: peer, State: v1alpha1.SessionState(state), Reason: reason, Message: message})
		last := &s.Status.BGP.Sessions[len(s.Status.BGP.Sessions)-1]
		last.BFD = &v1alpha1.BFDStatus{State: "Down", Message: "comes up"}
		if unwatched {
			last.BFD.Reason, last.BFD.Message = "BFDNotUp", why
		}
	}
	return s
}

func conditionText(c metav1.Condition) string {
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

// TestEvaluatePeer: the sessions of a peer are aggregated over the nodes that should have one and run a speaker.
func TestEvaluatePeer(t *testing.T) {
	readyUnknown := func(n *v1.Node) {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown}}
	}
	inRack := func(op metav1.LabelSelectorOperator, values ...string) func(*v1alpha1.BGPPeer) {
		return func(p *v1alpha1.BGPPeer) {
			p.Spec.NodeSelectors = []metav1.LabelSelector{{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: op, Values: values}}}}
		}
	}
	for _, tt := range []struct {
		name               string
		peer               v1alpha1.BGPPeer
		nodes              []*v1.Node
		speakers           []v1alpha1.SpeakerStatus
		absent             map[string]v1alpha1.Absence
		want, ready, count string
	}{
		{name: "all up, and a node without a speaker", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b"), ccmtest.Node("control")},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established"), speaker("b", "other=Idle", "tor=Established")},
			want:     "True Established: 2 of 2 nodes", count: "2/2"},
		{name: "up, incomplete", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b")},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established/Refused/as it was before"), speaker("b", "tor=Established/NotConfigured/no IPv6 InternalIP")},
			want:     "True Established: 2 of 2 nodes: incomplete: b: no IPv6 InternalIP", count: "2/2"},
		{name: "up, without BFD", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b"), ccmtest.Node("c"), ccmtest.Node("d")},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established//+BFD: a TTL of 63, and 254 is the least"), speaker("b", "tor=Established"),
				speaker("c", "tor=Established/NotConfigured/no IPv6 InternalIP+BFD: no packet"), speaker("d", "tor=Established//+BFD: ")},
			want: "True Established: 4 of 4 nodes: incomplete: a: BFD is not up: a TTL of 63, and 254 is the least, c: BFD is not up: no packet, " +
				"c: no IPv6 InternalIP, d: BFD is not up: BFDNotUp", count: "4/4"},
		{name: "one down", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b"), ccmtest.Node("c")},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established"), speaker("b", "tor=Established"), speaker("c", "tor=Active/WrongASN/the router has AS 65001, the BGPPeer has 65002")},
			want:     "False WrongASN: 2 of 3 nodes: c: WrongASN: the router has AS 65001, the BGPPeer has 65002", count: "2/3"},
		{name: "down for different reasons", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b")},
			speakers: []v1alpha1.SpeakerStatus{speaker("b", "tor=Active/Refused/connection refused"), speaker("a", "tor=Connect")},
			want:     "False SessionsDown: 0 of 2 nodes: a: Connect, b: Refused: connection refused", count: "0/2"},
		{name: "one not reported, one with Ready Unknown", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b"), ccmtest.Node("c", readyUnknown)},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established"), speaker("b"), speaker("c", "tor=Established")},
			want:     "Unknown NotReported: 1 of 3 nodes: b: its speaker reports no session; does it run with --bgp-socket?, c: the node's Ready condition is Unknown", count: "1/3"},
		{name: "absent speakers", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b"), ccmtest.Node("c", readyUnknown)},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established"), speaker("b", "tor=Active/Refused/no"), speaker("c", "tor=Established")},
			absent:   map[string]v1alpha1.Absence{"a": v1alpha1.AbsenceSilent, "b": v1alpha1.AbsenceStopped, "c": v1alpha1.AbsenceSilent},
			want:     "Unknown NotReported: 0 of 3 nodes: a: its speaker is unreachable from the others, b: its speaker has been stopped, c: the node's Ready condition is Unknown", count: "0/3"},
		{name: "down counts more than unknown", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b")},
			speakers: []v1alpha1.SpeakerStatus{speaker("a"), speaker("b", "tor=Idle/Duplicate/as BGPPeer six")},
			want:     "False Duplicate: 0 of 2 nodes: b: Duplicate: as BGPPeer six, a: its speaker reports no session; does it run with --bgp-socket?", count: "0/2",
			ready: "False Duplicate: spec.peerAddress: there is no session on b: as BGPPeer six"},
		{name: "selected nodes only", peer: bgpPeer("tor", inRack(metav1.LabelSelectorOpIn, "1")), nodes: []*v1.Node{ccmtest.Node("a", ccmtest.Rack("1")), ccmtest.Node("b", ccmtest.Rack("2"))},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established"), speaker("b")},
			want:     "True Established: 1 of 1 nodes", count: "1/1"},
		{name: "no node selected", peer: bgpPeer("tor", inRack(metav1.LabelSelectorOpIn, "3")), nodes: []*v1.Node{ccmtest.Node("a", ccmtest.Rack("1"))},
			speakers: []v1alpha1.SpeakerStatus{speaker("a")},
			want:     "False NoNode: No node with a speaker matches spec.nodeSelectors: widen them, or label a node", count: "0/0"},
		{name: "no speaker", peer: bgpPeer("tor"), nodes: []*v1.Node{ccmtest.Node("a")}, want: "False NoNode: No speaker has reported yet", count: "0/0"},
		{name: "bad selector", peer: bgpPeer("tor", inRack("Like")), nodes: []*v1.Node{ccmtest.Node("a", ccmtest.Rack("1"))}, speakers: []v1alpha1.SpeakerStatus{speaker("a")},
			want: "False NoNode: No node with a speaker matches spec.nodeSelectors: widen them, or label a node", count: "0/0",
			ready: `False InvalidSelector: spec.nodeSelectors[0]: "Like" is not a valid label selector operator. The selector matches nothing until it is fixed`},
		{name: "a selector twice", peer: bgpPeer("tor", inRack(metav1.LabelSelectorOpIn, "1"), func(p *v1alpha1.BGPPeer) {
			p.Spec.NodeSelectors = append(p.Spec.NodeSelectors, p.Spec.NodeSelectors[0])
		}), nodes: []*v1.Node{ccmtest.Node("a", ccmtest.Rack("1"))}, speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established")},
			want: "True Established: 1 of 1 nodes", count: "1/1",
			ready: "False RepeatedSelector: spec.nodeSelectors[1] is the same as [0]: remove one of them, or correct it. The peer is in use"},
		{name: "no profile", peer: bgpPeer("tor", func(p *v1alpha1.BGPPeer) { p.Spec.BFDProfile = "fast" }), nodes: []*v1.Node{ccmtest.Node("a")},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Idle/NotConfigured/no profile")},
			want:     "False NotConfigured: 0 of 1 nodes: a: NotConfigured: no profile", count: "0/1",
			ready: "False NoBFDProfile: spec.bfdProfile: there is no BFDProfile fast: create it, or name another one. There is no session until then"},
		{name: "a value twice", peer: bgpPeer("tor", inRack(metav1.LabelSelectorOpIn, "1", "1")), nodes: []*v1.Node{ccmtest.Node("a", ccmtest.Rack("1"))},
			speakers: []v1alpha1.SpeakerStatus{speaker("a", "tor=Established")}, want: "True Established: 1 of 1 nodes", count: "1/1",
			ready: "False RepeatedSelector: spec.nodeSelectors[0].matchExpressions[0].values has 1 twice: remove one of them, or correct it. The peer is in use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := bgpObjects{nodes: tt.nodes, speakers: v1alpha1.SpeakerStatusList{Items: tt.speakers}, absent: tt.absent}
			ready, established, count := evaluatePeer(&tt.peer, "", &o)
			ccmtest.Expect(t, conditionText(established), tt.want)
			ccmtest.Expect(t, count, tt.count)
			if tt.ready == "" {
				tt.ready = "True Read: The peer is in use"
			}
			ccmtest.Expect(t, conditionText(ready), tt.ready)
		})
	}
}

// TestEvaluateMinimumTTL: a minimumTtl that is not the effective one is reported in Ready, and is not an error.
func TestEvaluateMinimumTTL(t *testing.T) {
	const (
		inUse   = "True Read: The peer is in use"
		nothing = ". minimumTtl 250 of BFDProfile far has no effect: over one hop BFD accepts only a TTL of 255 (RFC 5881, 5). Name a profile without it"
		as255   = ". minimumTtl 250 of BFDProfile far counts as 255, because ttlSecurity requires it: write 255, in a separate profile of the peer"
	)
	type spec = v1alpha1.BGPPeerSpec
	external := func(s *spec) { s.PeerASN = ptr.To[int64](65000) }
	dynamic := func(as v1alpha1.DynamicASN) func(*spec) {
		return func(s *spec) { s.PeerASN, s.DynamicASN = nil, as }
	}
	multi, secure := func(s *spec) { s.EBGPMultiHop = true }, func(s *spec) { s.TTLSecurity = true }
	linkLocal := func(s *spec) { s.PeerAddress = "fe80::1%eth0" }
	for _, tt := range []struct {
		name    string
		profile string
		peer    []func(*spec)
		want    string
	}{
		{"external", "far", []func(*spec){external}, inUse + nothing + ", or, if the router is further away, set ebgpMultiHop"},
		{"external of any AS", "far", []func(*spec){dynamic(v1alpha1.DynamicExternal)}, inUse + nothing + ", or, if the router is further away, set ebgpMultiHop"},
		{"external without it", "near", []func(*spec){external}, inUse},
		{"external over several hops", "far", []func(*spec){external, multi}, inUse},
		{"internal", "far", nil, inUse},
		{"internal of any router", "far", []func(*spec){dynamic(v1alpha1.DynamicInternal)}, inUse},
		{"link-local", "far", []func(*spec){linkLocal}, inUse + nothing},
		{"link-local with ttlSecurity", "far", []func(*spec){linkLocal, secure}, inUse + nothing},
		{"ttlSecurity", "far", []func(*spec){external, secure}, inUse + as255},
		{"ttlSecurity, internal", "far", []func(*spec){secure}, inUse + as255},
		{"ttlSecurity, 255", "255", []func(*spec){external, secure}, inUse},
		{"ttlSecurity without it", "near", []func(*spec){external, secure}, inUse},
	} {
		t.Run(tt.name, func(t *testing.T) {
			peer := bgpPeer("tor", func(p *v1alpha1.BGPPeer) {
				p.Spec.BFDProfile = tt.profile
				for _, change := range tt.peer {
					change(&p.Spec)
				}
			})
			var o bgpObjects
			for name, least := range map[string]*int32{"near": nil, "far": ptr.To[int32](250), "255": ptr.To[int32](255)} {
				o.profiles.Items = append(o.profiles.Items, v1alpha1.BFDProfile{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.BFDProfileSpec{MinimumTTL: least}})
			}
			ready, _, _ := evaluatePeer(&peer, "", &o)
			ccmtest.Expect(t, conditionText(ready), tt.want)
		})
	}
}

func bgpAd(name string, change ...func(*v1alpha1.BGPAdvertisementSpec)) v1alpha1.BGPAdvertisement {
	a := v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ad-" + name), Generation: 1}}
	a.Spec = v1alpha1.BGPAdvertisementSpec{AggregationLength: 32, AggregationLengthV6: 128}
	for _, f := range change {
		f(&a.Spec)
	}
	return a
}

func pref(n int64) func(*v1alpha1.BGPAdvertisementSpec) {
	return func(s *v1alpha1.BGPAdvertisementSpec) { s.LocalPref = &n }
}

func poolNamed(name string, addresses ...string) v1alpha1.IPAddressPool {
	return v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPAddressPoolSpec{Addresses: addresses}}
}

// TestEvaluateAdvertisements: which parts of an advertisement cannot be used as written, and which two advertisements
// conflict.
func TestEvaluateAdvertisements(t *testing.T) {
	type spec = v1alpha1.BGPAdvertisementSpec
	communities := func(entries ...string) func(*spec) { return func(s *spec) { s.Communities = entries } }
	peers := func(names ...string) func(*spec) { return func(s *spec) { s.Peers = names } }
	poolNames := func(names ...string) func(*spec) { return func(s *spec) { s.IPAddressPools = names } }
	poolsWith := func(op metav1.LabelSelectorOperator, values ...string) func(*spec) { // a selector for each value
		return func(s *spec) {
			for _, v := range values {
				s.IPAddressPoolSelectors = append(s.IPAddressPoolSelectors,
					metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "net", Operator: op, Values: []string{v}}}})
			}
		}
	}
	length := func(n int32) func(*spec) { return func(s *spec) { s.AggregationLength = n } }
	on := func(name string) func(*spec) {
		return func(s *spec) {
			s.NodeSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"rack": name}}}
		}
	}
	services := func(app string) func(*spec) {
		return func(s *spec) {
			s.ServiceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"app": app}}}
		}
	}
	web := ccmtest.ServiceFor("web", func(s *v1.Service) {
		s.Spec.Type, s.Labels = v1.ServiceTypeLoadBalancer, map[string]string{"app": "web"}
	})
	const inUse = "True Read: The advertisement is in use"
	conflict := func(mine int, other string, theirs int, pool, peer string) string {
		return fmt.Sprintf("False LocalPrefConflict: spec.localPref: is %d, and that of BGPAdvertisement %s is %d for the same prefixes of IPAddressPool %s to BGPPeer %s: make them equal. The lower one counts until then",
			mine, other, theirs, pool, peer)
	}
	const wide = "spec.aggregationLength: 24 announces 192.0.2.0/24, " +
		"and IPAddressPool lan has only 192.0.2.0-192.0.2.15 of it: " +
		"write a greater length, or add the addresses to the pool. The prefix is announced all the same"
	wideMore := strings.NewReplacer("pool lan", "pool more", "Pool lan", "Pool more", "192.0.2.0-192.0.2.15", "192.0.2.16-192.0.2.31").Replace(wide)
	const tooWide = "False AggregateTooWide: "
	for _, tt := range []struct {
		name string
		ads  []v1alpha1.BGPAdvertisement
		want []string
	}{
		{"an aggregate as the pool is", []v1alpha1.BGPAdvertisement{bgpAd("a", length(28))}, []string{inUse}},
		{"one that is smaller", []v1alpha1.BGPAdvertisement{bgpAd("a", length(30))}, []string{inUse}},
		{"wider than the pool", []v1alpha1.BGPAdvertisement{bgpAd("a", length(24), poolNames("lan"))}, []string{tooWide + wide}},
		{"wider than the second pool", []v1alpha1.BGPAdvertisement{bgpAd("a", length(24), poolNames("more"))}, []string{tooWide + wideMore}},
		{"of some Services", []v1alpha1.BGPAdvertisement{bgpAd("a", length(28), services("web"))},
			[]string{"False AggregateOfSomeServices: spec.aggregationLength: 28, but spec.serviceSelectors is for some Services, and the " +
				"prefix has addresses of others, too: write 32, or remove the selectors. The prefix is announced all the same"}},
		{"a selector twice", []v1alpha1.BGPAdvertisement{bgpAd("a", on("1"), func(s *spec) {
			s.NodeSelectors = append(s.NodeSelectors, s.NodeSelectors[0])
		})}, []string{"False RepeatedSelector: spec.nodeSelectors[1] is the same as [0]: remove one of them, or correct it"}},
		{"plain", []v1alpha1.BGPAdvertisement{bgpAd("a")}, []string{inUse}},
		{"all there", []v1alpha1.BGPAdvertisement{bgpAd("a", communities("65000:1", "gold"), peers("in", "ex"), pref(200))}, []string{inUse}},
		{"unknown community", []v1alpha1.BGPAdvertisement{bgpAd("a", communities("silver"))},
			[]string{"False UnknownCommunity: spec.communities: no Community has the name silver: add it to one, or remove it. The advertisement announces nothing until then"}},
		{"community of two values", []v1alpha1.BGPAdvertisement{bgpAd("a", communities("twice"))},
			[]string{"False UnknownCommunity: spec.communities: twice has different values in the Communities one, two: make them equal, or rename one. The advertisement announces nothing until then"}},
		{"unknown peers", []v1alpha1.BGPAdvertisement{bgpAd("a", peers("in", "x", "y"))},
			[]string{"False UnknownPeer: spec.peers: there is no BGPPeer x, y: create it, or remove it from the list"}},
		{"bad selector and unknown peer", []v1alpha1.BGPAdvertisement{bgpAd("a", peers("x"), func(s *spec) {
			s.ServiceSelectors = []metav1.LabelSelector{{}, {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}}
		})}, []string{`False InvalidSelector: spec.serviceSelectors[1]: "Like" is not a valid label selector operator. The selector matches nothing until it is fixed; ` +
			"spec.peers: there is no BGPPeer x: create it, or remove it from the list"}},
		{"unknown pool", []v1alpha1.BGPAdvertisement{bgpAd("a", poolNames("routd"))},
			[]string{"False UnknownPool: spec.ipAddressPools: there is no IPAddressPool routd: create it, or remove it from the list. The advertisement selects no addresses until then"}},
		{"one pool of two unknown", []v1alpha1.BGPAdvertisement{bgpAd("a", poolNames("routd", "lan"))},
			[]string{"False UnknownPool: spec.ipAddressPools: there is no IPAddressPool routd: create it, or remove it from the list. The advertisement is in use for the other pools"}},
		{"pool selectors", []v1alpha1.BGPAdvertisement{bgpAd("a", poolsWith("In", "lan"))}, []string{inUse}},
		{"pool selector that matches nothing", []v1alpha1.BGPAdvertisement{bgpAd("a", poolsWith("In", "lan", "wan"))},
			[]string{"False UnknownPool: spec.ipAddressPoolSelectors[1]: no IPAddressPool matches: label one, or remove the selector. The advertisement is in use for the other pools"}},
		{"bad pool selector", []v1alpha1.BGPAdvertisement{bgpAd("a", poolsWith("Like", "lan"))},
			[]string{`False InvalidSelector: spec.ipAddressPoolSelectors[0]: "Like" is not a valid label selector operator. The selector matches nothing until it is fixed`}},
		{"no node", []v1alpha1.BGPAdvertisement{bgpAd("a", on("3"))},
			[]string{"False NoNode: spec.nodeSelectors: no node matches: widen them, or label a node. The advertisement announces nothing until then"}},
		{"localPref for external peers", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), peers("ex"))},
			[]string{"True Read: The advertisement is in use. spec.localPref is not sent to any of its peers: they are external"}},

		{"two values of localPref", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200)), bgpAd("b", pref(300))},
			[]string{conflict(200, "b", 300, "lan", "in"), conflict(300, "a", 200, "lan", "in")}},
		{"a value and none", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200)), bgpAd("b", communities("1:1"))},
			[]string{conflict(200, "b", 100, "lan", "in"), conflict(100, "a", 200, "lan", "in")}},
		{"the default value and none", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(100)), bgpAd("b")}, []string{inUse, inUse}},
		{"one value", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200)), bgpAd("b", pref(200))}, []string{inUse, inUse}},
		{"different lengths", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), poolNames("lan")), bgpAd("b", pref(300), length(24), poolNames("lan"))}, []string{inUse, tooWide + wide}},
		{"different lengths in one family only", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200)), bgpAd("b", pref(300), length(24))},
			[]string{conflict(200, "b", 300, "six", "in"), conflict(300, "a", 200, "six", "in") + "; " + wide}},
		{"different pools", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), poolNames("lan")), bgpAd("b", pref(300), poolNames("more"))}, []string{inUse, inUse}},
		{"different pools of one aggregate", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), length(24), poolNames("lan")), bgpAd("b", pref(300), length(24), poolNames("more"))},
			[]string{conflict(200, "b", 300, "lan", "in") + "; " + wide, conflict(300, "a", 200, "lan", "in") + "; " + wideMore}},
		{"different peers", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), peers("in")), bgpAd("b", pref(300), peers("in2"))}, []string{inUse, inUse}},
		{"external peers", []v1alpha1.BGPAdvertisement{bgpAd("a", peers("ex")), bgpAd("b", pref(300), peers("in", "ex"))}, []string{inUse, inUse}},
		{"different nodes", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), on("1")), bgpAd("b", pref(300), on("2"))}, []string{inUse, inUse}},
		{"some nodes", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), on("1")), bgpAd("b", pref(300))},
			[]string{conflict(200, "b", 300, "lan", "in"), conflict(300, "a", 200, "lan", "in")}},
		{"different Services", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), services("web")), bgpAd("b", pref(300), services("mail"))}, []string{inUse, inUse}},
		{"some Services", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), services("web")), bgpAd("b", pref(300))},
			[]string{conflict(200, "b", 300, "lan", "in"), conflict(300, "a", 200, "lan", "in")}},
		{"Services that there are not", []v1alpha1.BGPAdvertisement{bgpAd("a", pref(200), services("mail")), bgpAd("b", pref(300))}, []string{inUse, inUse}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := bgpObjects{nodes: []*v1.Node{ccmtest.Node("a", ccmtest.Rack("1")), ccmtest.Node("b", ccmtest.Rack("2"))}, services: []*v1.Service{web}}
			o.ads.Items = tt.ads
			o.peers.Items = []v1alpha1.BGPPeer{bgpPeer("in"), bgpPeer("in2", func(p *v1alpha1.BGPPeer) { p.Spec.PeerASN, p.Spec.DynamicASN = nil, v1alpha1.DynamicInternal }),
				bgpPeer("ex", func(p *v1alpha1.BGPPeer) { p.Spec.PeerASN = ptr.To[int64](65000) })}
			o.pools.Items = []v1alpha1.IPAddressPool{poolNamed("lan", "192.0.2.0/28"), poolNamed("more", "192.0.2.16-192.0.2.31"), poolNamed("six", "2001:db8::/112")}
			o.pools.Items[0].Labels = map[string]string{"net": "lan"}
			o.communities.Items = []v1alpha1.Community{
				{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: v1alpha1.CommunitySpec{Communities: []v1alpha1.NamedCommunity{{Name: "gold", Value: "65000:2"}, {Name: "twice", Value: "65000:3"}}}},
				{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: v1alpha1.CommunitySpec{Communities: []v1alpha1.NamedCommunity{{Name: "gold", Value: "65000:2"}, {Name: "twice", Value: "65000:4"}}}},
			}
			got, _ := evaluateAdvertisements(&o)
			for i, want := range tt.want {
				ccmtest.Expect(t, conditionText(got[tt.ads[i].Name]), want)
			}
		})
	}
}

// TestBGPStatusIsWritten: the status is written once per change, retried after a failure, with an Event about what
// cannot be used.
func TestBGPStatusIsWritten(t *testing.T) {
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		t.Fatal(err)
	}
	tor, all, report := bgpPeer("tor"), bgpAd("all"), speaker("a", "tor=Active/Refused/connection refused")
	writes, refuse := 0, false
	cl := fake.NewClientBuilder().WithScheme(sch).WithStatusSubresource(&tor, &all).WithObjects(&tor, &all, &report).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if writes++; refuse {
				return errors.New("refused")
			}
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	}).Build()
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := nodes.Add(ccmtest.Node("a")); err != nil {
		t.Fatal(err)
	}
	services := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	events := record.NewFakeRecorder(10)
	b := New(slog.New(slog.DiscardHandler), events, cl, corelisters.NewServiceLister(services), corelisters.NewNodeLister(nodes))
	pass := func(wantWrites, wantEvents int, wantPeer, wantAd string) {
		t.Helper()
		writes = 0
		if err := b.pass(t.Context()); (err != nil) != (refuse && wantWrites > 0) {
			t.Errorf("got %v", err)
		}
		if writes != wantWrites || len(events.Events) != wantEvents {
			t.Errorf("%d writes and %d Events, want %d and %d", writes, len(events.Events), wantWrites, wantEvents)
		}
		for len(events.Events) > 0 {
			<-events.Events
		}
		var peer v1alpha1.BGPPeer
		var ad v1alpha1.BGPAdvertisement
		if err := errors.Join(cl.Get(t.Context(), client.ObjectKey{Name: "tor"}, &peer), cl.Get(t.Context(), client.ObjectKey{Name: "all"}, &ad)); err != nil {
			t.Fatal(err)
		}
		is := func(conditions []metav1.Condition, kind string) string {
			if c := meta.FindStatusCondition(conditions, kind); c != nil {
				return string(c.Status) + " " + c.Reason
			}
			return "nothing"
		}
		ccmtest.Expect(t, peer.Status.Sessions+" "+is(peer.Status.Conditions, "Established"), wantPeer)
		ccmtest.Expect(t, is(ad.Status.Conditions, "Ready"), wantAd)
	}
	change := func(obj client.Object, f func()) {
		t.Helper()
		if err := cl.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			t.Fatal(err)
		}
		f()
		if err := cl.Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}

	pass(2, 0, "0/1 False Refused", "True Read")
	pass(0, 0, "0/1 False Refused", "True Read")
	change(&report, func() { report.Status = speaker("a", "tor=Established").Status })
	refuse = true
	pass(1, 0, "0/1 False Refused", "True Read")
	refuse = false
	pass(1, 0, "1/1 True Established", "True Read")
	pass(0, 0, "1/1 True Established", "True Read")
	change(&all, func() { all.Spec.Peers = []string{"gone"} })
	b.written[all.UID] = all.ResourceVersion // written, and not in the cache yet
	pass(0, 1, "1/1 True Established", "True Read")
	clear(b.written)
	pass(1, 0, "1/1 True Established", "False UnknownPeer")
	change(&all, func() { all.Spec.Peers = nil })
	pass(1, 0, "1/1 True Established", "True Read")

	profile := v1alpha1.BFDProfile{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Spec: v1alpha1.BFDProfileSpec{ReceiveInterval: 50}}
	last := func(want bool, in string) {
		t.Helper()
		pass(1, 0, "1/1 True Established", "True Read")
		if err := cl.Get(t.Context(), client.ObjectKey{Name: "tor"}, &tor); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(tor.Status.LastBFDProfile, `"receiveInterval":50`); got != want {
			t.Errorf("%s: the last profile is %q", in, tor.Status.LastBFDProfile)
		}
	}
	if err := cl.Create(t.Context(), &profile); err != nil {
		t.Fatal(err)
	}
	change(&tor, func() { tor.Spec.BFDProfile = "fast" })
	pass(0, 0, "1/1 True Established", "True Read")
	if err := cl.Delete(t.Context(), &profile); err != nil {
		t.Fatal(err)
	}
	pass(1, 1, "1/1 True Established", "True Read")
	b = New(slog.New(slog.DiscardHandler), events, cl, corelisters.NewServiceLister(services), corelisters.NewNodeLister(nodes))
	pass(0, 1, "1/1 True Established", "True Read")
	change(&report, func() { report.Status = speaker("a", "tor=Active/Refused").Status })
	pass(1, 0, "0/1 False Refused", "True Read")
	change(&report, func() { report.Status = speaker("a", "tor=Established").Status })
	last(true, "deleted")
	profile.ResourceVersion = ""
	if err := cl.Create(t.Context(), &profile); err != nil {
		t.Fatal(err)
	}
	last(false, "created again")
}
