package kube

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestUnservedStatus: at most ten addresses are listed per reason, and all are counted.
func TestUnservedStatus(t *testing.T) {
	var many []netip.Addr
	for i := range 12 {
		many = append(many, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
	}
	got := withUnserved(nil, map[view.Reason][]netip.Addr{view.KernelAnswers: many[3:4], view.DataPlaneNotReady: many})
	want := &v1alpha1.BGPStatus{Unserved: []v1alpha1.UnservedStatus{
		{Reason: "DataPlaneNotReady", Message: notProgrammed, Count: 12, Addresses: []string{"203.0.113.0", "203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4", "203.0.113.5",
			"203.0.113.6", "203.0.113.7", "203.0.113.8", "203.0.113.9"}},
		{Reason: "KernelAnswers", Message: notProgrammed, Count: 1, Addresses: []string{"203.0.113.3"}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	direct := withNotDirect(nil, map[view.Reason]report.NotDirect{view.TunnelUnavailable: {Message: "why", Addresses: many}})
	want = &v1alpha1.BGPStatus{NotDirect: []v1alpha1.UnservedStatus{{Reason: "TunnelUnavailable", Message: "why", Count: 12, Addresses: want.Unserved[0].Addresses}}}
	if !reflect.DeepEqual(direct, want) {
		t.Errorf("got %+v, want %+v", direct, want)
	}
	if got := withNotDirect(withUnserved(nil, nil), nil); got != nil {
		t.Errorf("nothing is written as %+v", got)
	}
}
