package main

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func TestSessions(t *testing.T) {
	cl := cluster(
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.SpeakerStatusStatus{
			Members: []v1alpha1.MemberStatus{{Node: "c", State: v1alpha1.MemberSilent, Since: ago(time.Minute)}},
			BGP: &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{
				{Peer: "six", Address: "2001:db8::1", State: "Active", Since: ago(2 * time.Minute), Reason: "WrongASN", Message: "the router has AS 65001, the BGPPeer has 65002", PeerASN: 65001, Prefixes: 12},
				{Peer: "tor", Address: "192.0.2.1", State: "Established", Since: ago(time.Hour), Reason: "HoldTimeExpired", Message: "as it was before", Prefixes: 12, PeerASN: 4200000000,
					BFD: &v1alpha1.BFDStatus{State: "Up", Since: ago(time.Hour)}},
			}},
		}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Status: v1alpha1.SpeakerStatusStatus{
			BGP: &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "new", State: "Idle"},
				{Peer: "tor", State: "Established", Reason: "NotConfigured", Message: "no IPv6 InternalIP"},
				{Peer: "up", State: "Established", Since: ago(time.Hour), BFD: &v1alpha1.BFDStatus{State: "Down", Since: ago(time.Minute), Reason: "BFDNotUp", Message: "a TTL of 63"}},
				{Peer: "young", State: "Established", BFD: &v1alpha1.BFDStatus{State: "Down", Message: "no packet"}}}},
		}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Status: v1alpha1.SpeakerStatusStatus{
			BGP: &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "tor", Address: "192.0.2.1", State: "Established", Since: ago(time.Hour), Prefixes: 12, PeerASN: 4200000000}}},
		}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "d"}},
	)
	const want = `
NODE  PEER   ADDRESS      ASN         SESSION      SINCE  PREFIXES  BFD       REASON
a     six    2001:db8::1  65001       Active       2m     -         -         WrongASN
a     tor    192.0.2.1    4200000000  Established  60m    12        Up 60m    -
b     new    -            -           Idle         -      -         -         -
b     tor    -            -           Established  -      0         -         NotConfigured
b     up     -            -           Established  60m    0         Down 60s  BFDNotUp
b     young  -            -           Established  -      0         Down      -
c     tor    192.0.2.1    4200000000  Unknown      -      -         -         Silent

a: no session with six: WrongASN: the router has AS 65001, the BGPPeer has 65002
b: BGPPeer tor is only partly configured: no IPv6 InternalIP
b: session with up without BFD: BFDNotUp: a TTL of 63
`
	got := run(cl, "status")
	if i := strings.Index(got, "NODE  PEER"); i < 0 {
		t.Errorf("no sessions:\n%s", got)
	} else {
		expect(t, "sessions", got[i:], want)
	}
	if got := run(example(), "status"); strings.Contains(got, "PEER") {
		t.Errorf("without BGP:\n%s", got)
	}
}

// TestSessionsOf: arguments select nodes, peers and routers' addresses. A problem at several nodes is written once.
func TestSessionsOf(t *testing.T) {
	const why = "no answer: is it up?"
	var objects []client.Object
	for _, node := range []string{"a", "b", "c"} {
		objects = append(objects, &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1alpha1.SpeakerStatusStatus{
			BGP: &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{
				{Peer: "dead", Address: "192.0.2.2", State: "Active", Reason: "NoAnswer", Message: why},
				{Peer: "tor", Address: "192.0.2.1", State: "Established", PeerASN: 65000, Prefixes: 1},
			}},
		}})
	}
	cl := cluster(objects...)
	const one = `
NODE  PEER  ADDRESS    ASN    SESSION      SINCE  PREFIXES  BFD  REASON
b     dead  192.0.2.2  -      Active       -      -         -    NoAnswer
b     tor   192.0.2.1  65000  Established  -      1         -    -

b: no session with dead: NoAnswer: ` + why
	const dead = `
NODE  PEER  ADDRESS    ASN  SESSION  SINCE  PREFIXES  BFD  REASON
a     dead  192.0.2.2  -    Active   -      -         -    NoAnswer
b     dead  192.0.2.2  -    Active   -      -         -    NoAnswer
c     dead  192.0.2.2  -    Active   -      -         -    NoAnswer

a, b, c: no session with dead: NoAnswer: ` + why
	expect(t, "of a node", run(cl, "status", "b"), one)
	expect(t, "with a peer", run(cl, "status", "dead"), dead)
	expect(t, "with an address", run(cl, "status", "192.0.2.2"), dead)
	if got := run(cl, "status", "tor"); strings.Contains(got, "dead") || strings.Count(got, "Established") != 3 {
		t.Errorf("with another peer:\n%s", got)
	}
}
