package ccm

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

const torPeer = `{apiVersion: ironlb.io/v1alpha1, kind: BGPPeer, metadata: {name: tor}, spec: {myASN: 64512, peerASN: 65002, peerAddress: 192.0.2.1, bfdProfile: fast,
	passwordSecret: {name: tor}, nodeSelectors: [{matchLabels: {kubernetes.io/os: linux}}]}}`

// side is a speaker's API client, with its account's permissions, without a data plane.
type side struct {
	*kube.Client
	kills chan struct{}
	stop  func()
}

func startSide(ctx context.Context, t *testing.T, config *rest.Config, node string) *side {
	t.Helper()
	var err error
	s := &side{kills: make(chan struct{}, 1)}
	s.Client, err = kube.New(config, kube.Options{Node: node, Passwords: v1alpha1.PasswordNamespace}, func() {
		select {
		case s.kills <- struct{}{}:
		default:
		}
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 3)
	for _, run := range []func(context.Context) error{s.Source.Run, s.Node.Run, s.Events.Run} {
		go func() { done <- run(ctx) }()
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(s.stop)
	return s
}

// sees waits until the View satisfies is.
func (s *side) sees(t *testing.T, what string, is func(*view.View) bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		v, _, ok := s.Source.Observe()
		if ok && is(v) {
			return
		}
		select {
		case <-s.kills:
		case <-deadline:
			t.Fatalf("%s: not in the View", what)
		}
	}
}

// TestBGP: a speaker with its own permissions reads BGP's objects and only permitted Secrets. Its reported sessions
// appear in the conditions of the BGPPeer, in Events and in kubectl ironlb status.
func TestBGP(t *testing.T) {
	f := use(t, "bgp")
	ctx := f.ctx
	f.must(f.AddNodes(ctx, 2))
	for _, name := range []string{"node1", "node2"} {
		f.apply(fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/os: linux}}}", name))
	}
	f.start()
	config, err := f.SpeakerConfig(ctx, "node1")
	f.must(err)
	account, err := kubernetes.NewForConfig(config)
	f.must(err)
	for _, namespace := range []string{"kube-system", "ironlb-system"} {
		if _, err := account.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a speaker may list the Secrets of namespace %s: %v", namespace, err)
		}
		if _, err := account.CoreV1().Secrets(namespace).Get(ctx, "ironlb-speaker-keys", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a speaker may read the key in namespace %s: %v", namespace, err)
		}
	}
	s := startSide(ctx, t, config, "node1")
	s.sees(t, "nothing", func(v *view.View) bool { return len(v.BGPPeers) == 0 && len(v.Nodes) == 2 })

	secrets := f.Kube.CoreV1().Secrets(v1alpha1.PasswordNamespace)
	secret := func(kind v1.SecretType, password string) {
		t.Helper()
		_ = secrets.Delete(ctx, "tor", metav1.DeleteOptions{}) // the type cannot be changed
		_, err := secrets.Create(ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "tor"}, Type: kind, StringData: map[string]string{"username": "bgp", "password": password}}, metav1.CreateOptions{})
		f.must(err)
	}
	wrong := func(reason view.Reason, text string) func(*view.View) bool {
		return func(v *view.View) bool {
			return v.BGPPeers["tor"].Wrong == reason && strings.Contains(v.BGPPeers["tor"].Message, text)
		}
	}
	secret(v1.SecretTypeOpaque, "s3cret")
	f.apply(torPeer)
	s.sees(t, "no profile", wrong(routes.NotConfigured, "no BFDProfile fast"))
	f.apply("{apiVersion: ironlb.io/v1alpha1, kind: BFDProfile, metadata: {name: fast}, spec: {receiveInterval: 100, transmitInterval: 100}}")
	s.sees(t, "a Secret of another type", wrong(routes.PasswordMissing, "no Secret tor of type kubernetes.io/basic-auth"))
	secret(v1.SecretTypeBasicAuth, "s3cret")
	s.sees(t, "the password", func(v *view.View) bool {
		return v.BGPPeers["tor"].Password == "s3cret" && v.BGPPeers["tor"].Wrong == ""
	})
	secret(v1.SecretTypeBasicAuth, "another")
	s.sees(t, "another password", func(v *view.View) bool { return v.BGPPeers["tor"].Password == "another" })
	f.apply("{apiVersion: ironlb.io/v1alpha1, kind: BFDProfile, metadata: {name: fast}, spec: {receiveInterval: 50, transmitInterval: 100, detectMultiplier: 5}}")
	s.sees(t, "another profile", func(v *view.View) bool {
		return v.BGPPeers["tor"].BFD == view.BFD{Receive: 50 * time.Millisecond, Transmit: 100 * time.Millisecond, Multiplier: 5}
	})

	peer := func(want string) {
		t.Helper()
		eventually.Nil(t, time.Minute, fmt.Sprintf("BGPPeer tor to have %q", want), func(context.Context) error {
			obj, got := v1alpha1.BGPPeer{}, ""
			f.read("bgppeers/tor", &obj)
			if c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionEstablished); c != nil {
				got = fmt.Sprintf("%s %s %s: %s", obj.Status.Sessions, c.Status, c.Reason, c.Message)
			}
			return eventually.Unless(got == want, "it has %q", got)
		})
	}
	publish := func(session routes.Session) {
		s.Node.ReportNode(report.NodeStatus{Healthy: true, Sessions: map[string]routes.Session{"tor": session}})
	}
	peer("0/0 False NoNode: No node with a speaker matches spec.nodeSelectors: widen them, or label a node")
	publish(routes.Session{State: routes.SessionActive, Since: time.Now(), Reason: routes.WrongASN, Message: "the router has AS 65001, the BGPPeer has 65002"})
	peer("0/1 False WrongASN: 0 of 1 nodes: node1: WrongASN: the router has AS 65001, the BGPPeer has 65002")
	publish(routes.Session{State: routes.SessionEstablished, Since: time.Now(), Prefixes: 7, PeerASN: 65002, BFD: view.BFDUp, BFDSince: time.Now(), Changes: 1})
	peer("1/1 True Established: 1 of 1 nodes")
	status, err := f.Plugin(ctx, "status")
	f.must(err)
	if line := "node1  tor   192.0.2.1  65002  Established"; !strings.Contains(status, line) {
		t.Errorf("kubectl ironlb status has no %q:\n%s", line, status)
	}
	eventually.Nil(t, patience, "Events about BGPPeer tor", func(context.Context) error {
		list, err := f.Kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=BGPPeer,source=ironlb-speaker"})
		f.must(err)
		var reported []string
		for _, e := range list.Items {
			reported = append(reported, e.Type+" "+e.Reason+" "+e.Message)
		}
		slices.Sort(reported)
		return eventually.Unless(slices.Equal(reported, []string{
			"Normal BFDUp node node1: BFD is up",
			"Normal SessionUp node node1: the session is established",
			"Warning WrongASN node node1: no session: the router has AS 65001, the BGPPeer has 65002",
		}), "they are %q", reported)
	})

	// The other node's speaker starts, and ends.
	up := map[string]routes.Session{"tor": {State: routes.SessionEstablished, Since: time.Now(), PeerASN: 65002, Changes: 1}}
	config, err = f.SpeakerConfig(ctx, "node2")
	f.must(err)
	other := startSide(ctx, t, config, "node2")
	other.Node.ReportNode(report.NodeStatus{Healthy: true, Sessions: up, Members: map[string]report.MemberState{"node1": report.MemberAlive}})
	s.Node.ReportNode(report.NodeStatus{Healthy: true, Sessions: up, Members: map[string]report.MemberState{"node2": report.MemberAlive}})
	peer("2/2 True Established: 2 of 2 nodes")
	other.stop()
	peer("1/2 Unknown NotReported: 1 of 2 nodes: node2: its speaker has been stopped")
	f.must(f.SetReady(ctx, "node1", v1.ConditionUnknown))
	peer("0/2 Unknown NotReported: 0 of 2 nodes: node1: the node's Ready condition is Unknown, node2: its speaker has been stopped")

	ad := func(want string) {
		t.Helper()
		eventually.Nil(t, patience, fmt.Sprintf("BGPAdvertisement web to have %q", want), func(context.Context) error {
			obj, got := v1alpha1.BGPAdvertisement{}, ""
			f.read("bgpadvertisements/web", &obj)
			if c := meta.FindStatusCondition(obj.Status.Conditions, "Ready"); c != nil {
				got = string(c.Status) + " " + c.Reason
			}
			return eventually.Unless(got == want, "it has %q", got)
		})
	}
	const web = "{apiVersion: ironlb.io/v1alpha1, kind: BGPAdvertisement, metadata: {name: web}, spec: {communities: [gold], peers: [%s]}}"
	f.apply(fmt.Sprintf(web, "six"))
	ad("False UnknownCommunity")
	f.apply(`{apiVersion: ironlb.io/v1alpha1, kind: Community, metadata: {name: all}, spec: {communities: [{name: gold, value: "65000:1"}]}}`)
	ad("False UnknownPeer")
	f.apply(fmt.Sprintf(web, "tor"))
	ad("True Read")
	s.sees(t, "the advertisement", func(v *view.View) bool {
		a := v.BGPAdvertisements["web"]
		return a.Length4 == 32 && a.Length6 == 128 && len(a.Missing) == 0 && slices.Equal(a.Peers, []string{"tor"}) && a.Attributes.Communities == view.NewCommunitySet(65000<<16|1)
	})

	// A Service announced only by BGP has its address, no VirtualIP, and no Warning.
	f.pool("web", "2001:db8:1::4/127")
	f.must(f.AddNode(ctx, "node3"))
	f.create("web", nil)
	f.served("web")
	s.sees(t, "the Service", func(v *view.View) bool { return len(v.Services) == 1 })
	events, err := f.Kube.CoreV1().Events("bgp").List(ctx, metav1.ListOptions{})
	f.must(err)
	for _, e := range events.Items {
		if e.Type != v1.EventTypeNormal && !strings.HasPrefix(e.Reason, "ClusterIP") { // the API server repairs its own ClusterIPs
			t.Errorf("of a Service that only BGP announces: %s: %s", e.Reason, e.Message)
		}
	}
	var vips v1alpha1.VirtualIPList
	if f.read("virtualips", &vips); len(vips.Items) > 0 {
		t.Errorf("it has a VirtualIP: %+v", vips.Items)
	}
}

// TestBGPRefused: a speaker works on a cluster with CRDs or permissions of an earlier release, without BGP. It starts
// BGP when they are updated. The rig restores the CRD.
func TestBGPRefused(t *testing.T) {
	f := use(t, "")
	ctx := f.ctx
	f.must(f.AddNodes(ctx, 1))
	config, err := f.SpeakerConfig(ctx, "node1")
	f.must(err)
	account, err := kubernetes.NewForConfig(config)
	f.must(err)
	f.apply(torPeer)
	roles := f.Kube.RbacV1().ClusterRoles()
	full, err := roles.Get(ctx, "ironlb-speaker", metav1.GetOptions{})
	f.must(err)
	earlier := full.DeepCopy()
	for i := range earlier.Rules {
		earlier.Rules[i].Resources = slices.DeleteFunc(earlier.Rules[i].Resources, func(name string) bool { return strings.HasPrefix(name, "b") || name == "communities" })
	}
	_, err = roles.Update(ctx, earlier, metav1.UpdateOptions{})
	f.must(err)
	f.must(f.Kube.Discovery().RESTClient().Delete().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/communities.ironlb.io").Do(ctx).Error())

	for _, kind := range []string{"bgppeers", "communities"} {
		eventually.True(t, patience, kind+" to be refused", func() bool {
			return account.Discovery().RESTClient().Get().AbsPath(api+"/"+kind).Do(ctx).Error() != nil
		})
	}
	s := startSide(ctx, t, config, "node1")
	s.sees(t, "a View without BGP", func(v *view.View) bool { return len(v.Nodes) == 1 && len(v.BGPPeers) == 0 })
	now, err := roles.Get(ctx, "ironlb-speaker", metav1.GetOptions{})
	f.must(err)
	now.Rules = full.Rules
	_, err = roles.Update(ctx, now, metav1.UpdateOptions{})
	f.must(err)
	s.sees(t, "the peer", func(v *view.View) bool { return v.BGPPeers["tor"].Wrong == routes.NotConfigured })
}
