package kube

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// died is the report of a speaker while node dead is unreachable.
func died(members map[string]report.MemberState) report.NodeStatus {
	return report.NodeStatus{
		Members: members,
		Reach: view.Reachability{Unreachable: map[string]view.UnreachableNode{"dead": {
			Since: time.Unix(1000, 5), Silent: []view.Witness{view.WitnessEcho, view.WitnessNeighbor},
			Gateway: netip.MustParseAddr("192.0.2.254"),
		}}},
		Unreachable: map[string]view.UnreachableEndpoints{"dead": {LeftOut: 12, FailedOpen: 1}},
	}
}

// TestReachEvents: one of the speakers that find the same writes, and each writes what others do not find.
func TestReachEvents(t *testing.T) {
	silent := map[string]report.MemberState{"a": report.MemberAlive, "c": report.MemberAlive, "dead": report.MemberSilent}
	with := func(name string, state report.MemberState) map[string]report.MemberState {
		m := map[string]report.MemberState{}
		for n, s := range silent {
			m[n] = s
		}
		m[name] = state
		return m
	}
	const warning = "Warning EndpointsUnreachable Unreachable from node b: neither the speaker nor the kernel (ICMPEcho, Neighbor) " +
		"answers; gateway 192.0.2.254 does; 12 endpoints take no new connections, 1 do because no other endpoint is left"
	for name, test := range map[string]struct {
		members map[string]report.MemberState
		want    bool
	}{
		"another one is first":        {silent, false},
		"the first is silent, too":    {with("a", report.MemberSilent), true},
		"others receive it":           {with("dead", report.MemberAlive), true},
		"no other, as with two nodes": {map[string]report.MemberState{"dead": report.MemberSilent}, true},
	} {
		recorder := record.NewFakeRecorder(10)
		e := &Events{node: "b", recorder: recorder, running: true}
		for range 2 {
			e.Reach(died(test.members))
		}
		e.Reach(died(with("dead", report.MemberObserver))) // its first heartbeat arrives
		e.Reach(report.NodeStatus{})
		e.Reach(report.NodeStatus{})
		var got, want []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		if test.want {
			want = []string{warning, "Normal EndpointsReachable Reachable from node b again; endpoints here take new connections"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, want)
		}
	}
}

// TestReachEventLater: a node whose last heartbeats have not expired yet is not taken for one that others receive.
func TestReachEventLater(t *testing.T) {
	for _, test := range []struct{ ago, dead time.Duration }{{0, 0}, {3 * time.Second, 5 * time.Second}} {
		recorder := record.NewFakeRecorder(10)
		e := &Events{node: "b", recorder: recorder, running: true}
		for _, state := range []report.MemberState{report.MemberAlive, report.MemberSilent} {
			status := died(map[string]report.MemberState{"a": report.MemberAlive, "dead": state})
			u := status.Reach.Unreachable["dead"]
			u.Since, status.Dead = time.Now().Add(-test.ago), test.dead
			status.Reach.Unreachable["dead"] = u
			e.Reach(status)
		}
		e.Reach(report.NodeStatus{})
		if len(recorder.Events) > 0 {
			t.Errorf("%+v: the second speaker by name wrote %q", test, <-recorder.Events)
		}
	}
}

func TestReachStatus(t *testing.T) {
	w := died(nil)
	w.Reach.Unwitnessed, w.Reach.CutOff = map[string]struct{}{"y": {}, "x": {}, "z": {}}, true
	since := metav1.Unix(1000, 0)
	var got v1alpha1.SpeakerStatusStatus
	reachStatus(&got, &w, func(name string) bool { return name != "z" })
	want := v1alpha1.SpeakerStatusStatus{
		Unreachable: []v1alpha1.UnreachableStatus{{
			Node: "dead", Since: since.Rfc3339Copy(), Silent: []v1alpha1.Witness{"ICMPEcho", "Neighbor"},
			Gateway: "192.0.2.254", Endpoints: 12, EndpointsFailedOpen: 1,
		}},
		WithoutWitness: []string{"x", "y"}, CutOff: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
