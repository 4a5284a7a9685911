package bgp

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestMisconfigured: a peer with which there can be no session says so, in the BGPPeer, the SpeakerStatus of each node and an Event, and touches
// neither the sessions of others nor a request. Mended, it comes up.
func TestMisconfigured(t *testing.T) {
	nobody := "192.0.2.126"
	for _, r := range tors {
		r.configure(t, func(c *router.Config) { c.Neighbors = append(c.Neighbors, r.neighbors6(nil)...) })
	}
	for _, test := range []struct {
		name   string
		peer   func(*tor) string
		reason plan.Reason
		words  string // in the message
		mend   func(*tor) string
	}{
		{"wrong AS of the router", func(r *tor) string { return strings.Replace(r.peer("6", ""), fmt.Sprint(routerASN), "64999", 1) },
			plan.WrongASN, "AS", func(r *tor) string { return r.peer("6", "") }},
		{"wrong AS of the node", func(r *tor) string { return strings.Replace(r.peer("6", ""), fmt.Sprint(nodeASN), "64998", 1) },
			plan.WrongASN, "myASN", func(r *tor) string { return r.peer("6", "") }},
		{"unreachable", func(r *tor) string { return strings.Replace(r.peer("", ""), r.machine.Addr.String(), nobody, 1) },
			plan.Unreachable, nobody, func(r *tor) string { return r.peer("6", "") }},
		{"refused", func(r *tor) string { return r.peer("6", "peerPort: 1790") },
			plan.Refused, "1790", func(r *tor) string { return r.peer("6", "") }},
		{"duplicate", func(r *tor) string { return r.peer("", "") },
			plan.Duplicate, "same peerAddress", func(r *tor) string { return r.peer("6", "") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, r := range tors {
				t.Run(r.name, func(t *testing.T) {
					before := whole(t)
					table, answered := still(t, vip), clients(t, vip, tors...)
					apply(t, "BGPPeer/wrong", test.peer(r))
					if message := wrong(t, "wrong", test.reason); !strings.Contains(message, test.words) {
						t.Errorf("the Event says %q, want it to name %q", message, test.words)
					}
					same(t, before)
					if err := put(t.Context(), "BGPPeer/wrong", test.mend(r)); err != nil {
						t.Fatal(err)
					}
					condition(t, "wrong", metav1.ConditionTrue, "Established", "3/3")
					same(t, before)
					answered()
					table()
				})
			}
		})
	}
}

// TestPeersChange: a peer is added, changed in all ways and removed, and no session but its own is touched.
func TestPeersChange(t *testing.T) {
	before := whole(t)
	table, answered := still(t, vip), clients(t, vip, tors...)
	second(t, "", nil)
	up(t)
	for _, more := range []string{"holdTime: 9s, keepaliveTime: 3s", "holdTime: 30s, gracefulRestart: false", "dualStackAddressFamily: true", "localASN: 65003"} {
		for _, r := range tors {
			asn := uint32(nodeASN)
			if strings.Contains(more, "localASN") {
				asn = 65003
			}
			spec := r.peer("6", more)
			if strings.Contains(more, "gracefulRestart") {
				spec = strings.Replace(spec, "gracefulRestart: true, ", "", 1)
			}
			r.configure(t, func(c *router.Config) {
				c.Neighbors = append(c.Neighbors, r.neighbors6(func(n *router.Neighbor) { n.ASN, n.IPv4, n.IPv6 = asn, true, true })...)
			})
			if err := put(t.Context(), "BGPPeer/"+r.name6(), spec); err != nil {
				t.Fatal(err)
			}
		}
		up(t)
		for _, r := range tors {
			condition(t, r.name6(), metav1.ConditionTrue, "Established", "3/3")
		}
		same(t, before)
	}
	for _, r := range tors {
		remove(t, "BGPPeer/"+r.name6())
	}
	down(t)
	same(t, before)
	answered()
	table()
}
