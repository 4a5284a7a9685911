package bgpstatus

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestNotDirect: what speakers report about addresses that only BGP announces becomes a warning after the grace period,
// or at once if an earlier process may have reported it. Absent speakers do not count.
func TestNotDirect(t *testing.T) {
	reports := func(node, reason string, addrs ...string) v1alpha1.SpeakerStatus {
		s := speaker(node, "tor=Established")
		if len(addrs) > 0 {
			s.Status.BGP.NotDirect = []v1alpha1.UnservedStatus{{Reason: reason, Message: "because of " + node, Addresses: addrs}}
		}
		return s
	}
	type speakers = []v1alpha1.SpeakerStatus
	const four, five = "203.0.113.4", "203.0.113.5"
	b4 := reports("b", "NodeWithoutTunnel", four)
	began := time.Unix(1000, 0)
	var n notDirect
	for _, step := range []struct {
		at       time.Duration
		speakers speakers
		absent   string
		recheck  time.Duration
		want     []string
	}{
		{0, speakers{b4, reports("a", "TunnelUnavailable", four), speaker("c")}, "", 0,
			[]string{"TunnelUnavailable 203.0.113.4 by BGP: node a and 1 more: because of a"}},
		{time.Second, speakers{b4, reports("a", "TunnelUnavailable", four, five)}, "a", 0,
			[]string{"NodeWithoutTunnel 203.0.113.4 by BGP: node b: because of b"}},
		{2 * time.Second, speakers{b4, reports("a", "TunnelUnavailable", five)}, "", watch.UnannouncedFor,
			[]string{"NodeWithoutTunnel 203.0.113.4 by BGP: node b: because of b"}},
		{3 * time.Second, speakers{reports("a", "TunnelUnavailable", five)}, "", watch.UnannouncedFor - time.Second, nil},
		{2*time.Second + watch.UnannouncedFor, speakers{reports("a", "TunnelUnavailable", five)}, "", 0,
			[]string{"TunnelUnavailable 203.0.113.5 by BGP: node a: because of a"}},
		{time.Hour, speakers{reports("a", "TunnelUnavailable"), {}}, "", 0, nil},
	} {
		o := bgpObjects{absent: map[string]v1alpha1.Absence{step.absent: v1alpha1.AbsenceSilent}}
		o.speakers.Items = step.speakers
		found, recheck := n.update(&o, began.Add(step.at))
		var got []string
		for _, addr := range slices.SortedFunc(maps.Keys(found), netip.Addr.Compare) {
			got = append(got, fmt.Sprintf("%s %s", found[addr].Reason, found[addr].Message))
		}
		if !slices.Equal(got, step.want) || recheck != step.recheck {
			t.Errorf("after %v: %s, recheck after %v; want %s and %v", step.at, strings.Join(got, "; "), recheck, strings.Join(step.want, "; "), step.recheck)
		}
	}
}
