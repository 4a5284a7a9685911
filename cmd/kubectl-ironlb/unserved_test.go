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
	cl := cluster(
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.SpeakerStatusStatus{
			BGP: &v1alpha1.BGPStatus{Unserved: []v1alpha1.UnservedStatus{
				{Reason: "NoLocalEndpoint", Message: "no node announces it", Count: 12, Addresses: []string{"203.0.113.4", "2001:db8::4"}},
				{Reason: "NoPeer", Count: 1, Addresses: []string{"203.0.113.9"}},
			}},
		}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Status: v1alpha1.SpeakerStatusStatus{
			Members: []v1alpha1.MemberStatus{{Node: "c", State: v1alpha1.MemberSilent, Since: ago(time.Minute)}},
			BGP:     &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "tor", State: "Established"}}},
		}},
		&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Status: v1alpha1.SpeakerStatusStatus{
			BGP: &v1alpha1.BGPStatus{Unserved: []v1alpha1.UnservedStatus{{Reason: "NoEndpoint", Count: 1, Addresses: []string{"203.0.113.4"}}}},
		}},
	)
	const head = "BGP addresses not serving traffic, by node:\n"
	const local = "a: 203.0.113.4, 2001:db8::4 and 10 more: NoLocalEndpoint: no node announces it"
	if got := run(cl, "status"); !strings.HasSuffix(strings.TrimSpace(got), "\n\n"+head+local+"\na: 203.0.113.9: NoPeer") {
		t.Errorf("the end is not what is unserved:\n%s", got)
	}
	for _, address := range []string{"203.0.113.4", "2001:db8:0::4"} {
		expect(t, address, run(cl, "status", address), head+local)
	}
	if got := run(cl, "status", "203.0.113.5"); !strings.Contains(got, "no problem is reported for them") {
		t.Errorf("an address without a report:\n%s", got)
	}
	if got := run(cl, "status", "b"); strings.Contains(got, "not serving traffic") || !strings.Contains(got, "tor") {
		t.Errorf("of another node:\n%s", got)
	}
}
