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
	nobody := map[string]string{"bird": "192.0.2.125", "frr": "192.0.2.126"}
	for _, r := range tors {
		r.configure(t, func(c *router.Config) { c.Neighbors = append(c.Neighbors, r.neighbors6(nil)...) })
	}
	for _, test := range []struct {
		name   string
		reason plan.Reason
		peer   func(*tor) (spec, words string) // words are in the message
	}{
		{"wrong AS of the router", plan.WrongASN, func(r *tor) (spec, words string) {
			return strings.Replace(r.peer("6", ""), fmt.Sprint(routerASN), "64999", 1), "AS"
		}},
		{"wrong AS of the node", plan.WrongASN, func(r *tor) (spec, words string) {
			return strings.Replace(r.peer("6", ""), fmt.Sprint(nodeASN), "64998", 1), "myASN"
		}},
		{"unreachable", plan.Unreachable, func(r *tor) (spec, words string) {
			return strings.Replace(r.peer("", ""), r.machine.Addr.String(), nobody[r.name], 1), nobody[r.name]
		}},
		{"refused", plan.Refused, func(r *tor) (spec, words string) { return r.peer("6", "peerPort: 1790"), "1790" }},
		{"duplicate", plan.Duplicate, func(r *tor) (spec, words string) { return r.peer("", ""), "same peerAddress" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := whole(t)
			table, answered := still(t, vip), clients(t, vip, tors...)
			for _, r := range tors {
				spec, _ := test.peer(r)
				apply(t, "BGPPeer/wrong-"+r.name, spec)
			}
			for _, r := range tors {
				_, words := test.peer(r)
				if message := wrong(t, "wrong-"+r.name, test.reason); !strings.Contains(message, words) {
					t.Errorf("the Event about the peer %s says %q, want it to name %q", r.name, message, words)
				}
			}
			same(t, before)
			for _, r := range tors {
				if err := put(t.Context(), "BGPPeer/wrong-"+r.name, r.peer("6", "")); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range tors {
				condition(t, "wrong-"+r.name, metav1.ConditionTrue, "Established", "3/3")
			}
			same(t, before)
			answered()
			table()
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
