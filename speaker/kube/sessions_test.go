package kube

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

func torStore(t *testing.T) cache.Store {
	t.Helper()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for name, address := range map[string]string{"tor": "192.0.2.1", "six": "2001:db8::1"} {
		if err := store.Add(&v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.BGPPeerSpec{PeerAddress: address}}); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

// The SpeakerStatus has the sessions by name, with exactly the known facts of each.
func TestSessionsInTheSpeakerStatus(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 999, time.UTC)
	since := metav1.NewTime(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC))
	got := bgpStatusOf(map[string]routes.Session{
		"tor": {State: routes.SessionEstablished, Since: at, Prefixes: 7, PeerASN: 4200000000, PeerID: netip.MustParseAddr("192.0.2.254"), BFD: view.BFDUp, BFDSince: at, Changes: 3},
		"six": {State: routes.SessionActive, Since: at, Reason: routes.Refused, Message: "connection refused", BFD: view.BFDDown, BFDMessage: "a TTL of 63", BFDReason: routes.BFDNotUp},
		"new": {Reason: routes.PasswordMissing, Message: "no Secret"},
	}, map[string]report.SessionFamilies{"tor": {IPv4: true, IPv6: true}, "six": {IPv6: true}}, torStore(t))
	want := &v1alpha1.BGPStatus{Established: "1/3", Sessions: []v1alpha1.SessionStatus{
		{Peer: "new", State: "Idle", Reason: "PasswordMissing", Message: "no Secret"},
		{Peer: "six", Address: "2001:db8::1", State: "Active", Since: &since, Reason: "Refused", Message: "connection refused", Families: []corev1.IPFamily{corev1.IPv6Protocol},
			BFD: &v1alpha1.BFDStatus{State: "Down", Reason: "BFDNotUp", Message: "a TTL of 63"}},
		{Peer: "tor", Address: "192.0.2.1", State: "Established", Since: &since, Prefixes: 7, PeerASN: 4200000000, PeerID: "192.0.2.254", Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			BFD: &v1alpha1.BFDStatus{State: "Up", Since: &since}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := bgpStatusOf(nil, nil, torStore(t)); got != nil {
		t.Errorf("without sessions: %v", got)
	}
}

// Events report each change of a session once: it came up, went down, was down in between, or cannot come up.
func TestSessionEvents(t *testing.T) {
	recorder := record.NewFakeRecorder(100)
	e := &Events{node: "a", recorder: recorder, began: time.Now()}
	store, later := torStore(t), e.began.Add(time.Second)
	up := func(changes uint64) routes.Session {
		return routes.Session{State: routes.SessionEstablished, Since: later, Changes: changes}
	}
	report := func(s routes.Session) { e.Sessions(store, map[string]routes.Session{"tor": s}) }
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	refused := routes.Session{State: routes.SessionActive, Reason: routes.Refused, Message: "connection refused"}

	report(refused)
	expect() // it does not run yet
	e.start()
	expect("Warning Refused node a: no session: connection refused")
	report(refused)
	refused.State = routes.SessionConnect // it retries
	report(refused)
	expect()
	report(routes.Session{State: routes.SessionActive, Reason: routes.WrongASN, Message: "it has AS 64999"})
	expect("Warning WrongASN node a: no session: it has AS 64999")
	report(up(1))
	report(up(1))
	expect("Normal SessionUp node a: the session is established")
	again := up(2)
	again.Message = "hold timer expired"
	report(again)
	expect("Normal SessionUp node a: the session is established again, after: hold timer expired")
	lacks := up(2)
	lacks.Reason, lacks.Message = routes.NotConfigured, "no IPv6 InternalIP"
	report(lacks)
	report(lacks)
	expect("Warning NotConfigured node a: no IPv6 InternalIP")
	down := routes.Session{State: routes.SessionIdle, Reason: routes.BFDWentDown, Message: "BFD found the path dead", Changes: 2}
	report(down)
	report(down)
	expect("Warning SessionDown node a: the session ended: BFD found the path dead")
	report(refused)
	expect("Warning Refused node a: no session: connection refused")
	e.Sessions(store, map[string]routes.Session{"gone": refused}) // its BGPPeer does not exist any more
	expect()

	// BFD comes up, and then is not up for long while BGP is. A different number of tries or another text causes no
	// Event.
	e.Sessions(store, map[string]routes.Session{})
	watched := func(state view.BFDState, reason view.Reason, message string) {
		s := up(3)
		s.BFD, s.BFDSince, s.BFDReason, s.BFDMessage = state, later, reason, message
		report(s)
	}
	watched(view.BFDDown, "", "no packet")
	expect("Normal SessionUp node a: the session is established")
	watched(view.BFDInit, "", "no packet")
	watched(view.BFDUp, "", "")
	watched(view.BFDUp, "", "")
	expect("Normal BFDUp node a: BFD is up")
	watched(view.BFDDown, "", "ended on purpose")
	expect()
	watched(view.BFDDown, routes.BFDNotUp, "ended on purpose")
	watched(view.BFDInit, routes.BFDNotUp, "ended on purpose")
	watched(view.BFDDown, routes.BFDNotUp, "a TTL of 63")
	expect("Warning BFDNotUp node a: the session is established, but BFD is not up, and nothing watches the path: ended on purpose")
	watched(view.BFDUp, "", "")
	expect("Normal BFDUp node a: BFD is up")

	// A restarted speaker finds sessions established by the previous process: no Event.
	old := &Events{node: "a", recorder: recorder, began: later.Add(time.Hour), running: true}
	was := up(9)
	was.BFD, was.BFDSince = view.BFDUp, later
	old.Sessions(store, map[string]routes.Session{"tor": was})
	expect()
	old.Sessions(store, map[string]routes.Session{"tor": down})
	expect("Warning SessionDown node a: the session ended: BFD found the path dead")
}
