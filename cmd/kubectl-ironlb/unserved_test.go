package main

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestUnserved: the BGP addresses not serving traffic, with the reason. A selected address is found in any notation,
// and the report of an absent speaker counts as outdated.
func TestUnserved(t *testing.T) {
	unserved := func(all ...v1alpha1.UnservedStatus) *v1alpha1.BGPStatus { return &v1alpha1.BGPStatus{Unserved: all} }
	failed := v1alpha1.UnservedStatus{Reason: "DataPlaneNotReady", Message: "not programmed", Count: 1, Addresses: []string{"203.0.113.4"}}
	cl := cluster(
		&v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Status: v1alpha1.BGPAdvertisementStatus{Unserved: []v1alpha1.UnservedStatus{
			{Reason: "NoLocalEndpoint", Message: "no node announces it", Count: 12, Addresses: []string{"203.0.113.4", "2001:db8::4"}},
			{Reason: "NoPeer", Count: 1, Addresses: []string{"203.0.113.9"}},
		}}},
		&v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Status: v1alpha1.BGPAdvertisementStatus{Unserved: []v1alpha1.UnservedStatus{
			{Reason: "NoPeer", Count: 1, Addresses: []string{"203.0.113.9"}},
		}}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.SpeakerStatusStatus{BGP: unserved(failed)}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Status: v1alpha1.SpeakerStatusStatus{
			BGP: &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "tor", State: "Established"}}},
		}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Status: v1alpha1.SpeakerStatusStatus{BGP: unserved(failed), Stopped: ago(time.Minute)}},
	)
	const head, programmed = "BGP addresses not serving traffic, by BGPAdvertisement:\n", "BGP addresses not programmed, by node:\na: 203.0.113.4: DataPlaneNotReady: not programmed"
	const local, peer = "all: 203.0.113.4, 2001:db8::4 and 10 more: NoLocalEndpoint: no node announces it", "all, more: 203.0.113.9: NoPeer"
	if got := run(cl, "status"); !strings.HasSuffix(strings.TrimSpace(got), "\n\n"+head+local+"\n"+peer+"\n\n"+programmed) {
		t.Errorf("the end is not what is unserved:\n%s", got)
	}
	for args, want := range map[string]string{
		"203.0.113.4": head + local + "\n\n" + programmed, "2001:db8:0::4": head + local, "more": head + "more: 203.0.113.9: NoPeer", "a": programmed,
	} {
		expect(t, args, run(cl, "status", args), want)
	}
	if got := run(cl, "status", "203.0.113.5"); !strings.Contains(got, "no problem is reported for them") {
		t.Errorf("an address without a report:\n%s", got)
	}
	if got := run(cl, "status", "b"); strings.Contains(got, "not serving traffic") || !strings.Contains(got, "tor") {
		t.Errorf("of another node:\n%s", got)
	}
}
