package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab/router"
	"github.com/ironlb/ironlb/test/rare"
)

// TestMisconfigured: a misconfigured peer is reported in the BGPPeer, the SpeakerStatus of each node and an Event. It
// affects neither other sessions nor any request. After the fix its session is established.
func TestMisconfigured(t *testing.T) {
	none := map[string]string{"bird": "192.0.2.125", "frr": "192.0.2.126"}
	for _, r := range tors {
		r.configure(t, func(c *router.Config) { c.Neighbors = append(c.Neighbors, r.neighbors6(nil)...) })
	}
	for _, test := range []struct {
		name   string
		reason view.Reason
		rare   bool
		peer   func(*tor) (spec, words string) // words are in the message
	}{
		{"wrong AS of the router", routes.WrongASN, false, func(r *tor) (spec, words string) {
			return strings.Replace(r.peer("6", ""), fmt.Sprint(routerASN), "64999", 1), "AS"
		}},
		{"wrong AS of the node", routes.WrongASN, true, func(r *tor) (spec, words string) {
			return strings.Replace(r.peer("6", ""), fmt.Sprint(nodeASN), "64998", 1), "myASN"
		}},
		{"unreachable", routes.Unreachable, true, func(r *tor) (spec, words string) {
			return strings.Replace(r.peer("", ""), r.machine.Addr.String(), none[r.name], 1), none[r.name]
		}},
		{"refused", routes.Refused, true, func(r *tor) (spec, words string) { return r.peer("6", "peerPort: 1790"), "1790" }},
		{"duplicate", routes.Duplicate, false, func(r *tor) (spec, words string) { return r.peer("", ""), "same peerAddress" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.rare {
				rare.Test(t)
			}
			before := initial(t)
			table, answered := still(t, vip), clients(t, vip, tors...)
			for _, r := range tors {
				spec, _ := test.peer(r)
				apply(t, "BGPPeer/wrong-"+r.name, spec)
			}
			for _, r := range tors {
				_, words := test.peer(r)
				if message := wrong(t, "wrong-"+r.name, test.reason); !strings.Contains(message, words) {
					t.Errorf("the Event about the peer %s: got %q, want it to name %q", r.name, message, words)
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

// TestNoSession: while no session is established, the BGPAdvertisement lists the addresses and the Service has a
// warning within ten seconds, until a session is established again.
func TestNoSession(t *testing.T) {
	rare.Test(t)
	initial(t)
	restore := func() {
		for _, r := range tors {
			if err := put(context.WithoutCancel(t.Context()), "BGPPeer/"+r.name, r.peer("", "")); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(restore)
	warns := func(want bool) {
		t.Helper()
		cluster.Await(t, patience, fmt.Sprintf("a warning about %s: %t", vip, want), func(ctx context.Context) error {
			var ad v1alpha1.BGPAdvertisement
			if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: "routed"}, &ad); err != nil {
				return err
			}
			listed := slices.ContainsFunc(ad.Status.Unserved, func(u v1alpha1.UnservedStatus) bool {
				return u.Reason == string(view.NoSession) && slices.Contains(u.Addresses, vip.String())
			})
			text, err := cluster.Kubectl(ctx, "get", "service", "web", "-o", `jsonpath={.status.conditions[?(@.type=="ironlb.io/Warnings")].message}`)
			if warned := strings.Contains(text, vip.String()+" by BGP: no node announces it: no node that may"); err == nil && (listed != want || warned != want) {
				err = fmt.Errorf("unserved %+v, warnings %q", ad.Status.Unserved, text)
			}
			return err
		})
	}
	for _, r := range tors {
		if err := put(t.Context(), "BGPPeer/"+r.name, r.peer("", "peerPort: 1790")); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range tors {
		condition(t, r.name, metav1.ConditionFalse, string(routes.Refused), "0/3")
	}
	began := time.Now()
	warns(true)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	for _, r := range tors {
		cluster.AwaitExplained(t, patience, "web", "Problem NoSession", `BGP +`+cluster.Node(0).Name+` to `+r.name+` +Info +Refused: `)
	}
	restore()
	warns(false)
	initial(t)
}

// TestPeersChange: a peer is added, changed in all ways and removed, and only its own session is affected. Each change
// is in the OPEN of a newer session, as reported by its router. The routers' configuration stays the same, so the node
// starts the new session.
func TestPeersChange(t *testing.T) {
	rare.Test(t)
	before := initial(t)
	table, answered := still(t, vip), clients(t, vip, tors...)
	second(t, "", func(n *router.Neighbor) { n.ASN, n.IPv4, n.IPv6 = 0, true, true })
	var earlier map[*tor]map[string]router.Session
	for _, is := range []opened{
		{asn: nodeASN, hold: 90 * time.Second, restart: 60 * time.Second},
		{more: "holdTime: 9s, keepaliveTime: 3s, gracefulRestart: false", asn: nodeASN, hold: 9 * time.Second},
		{more: "holdTime: 30s, restartTime: 77s, dualStackAddressFamily: true", asn: nodeASN, hold: 30 * time.Second, restart: 77 * time.Second, both: true},
		{more: "localASN: 65003", asn: 65003, hold: 90 * time.Second, restart: 60 * time.Second},
	} {
		for _, r := range tors {
			spec := r.peer("6", is.more)
			if strings.Contains(is.more, "gracefulRestart") {
				spec = strings.Replace(spec, "gracefulRestart: true, ", "", 1)
			}
			if err := put(t.Context(), "BGPPeer/"+r.name6(), spec); err != nil {
				t.Fatal(err)
			}
		}
		now := map[*tor]map[string]router.Session{}
		for _, r := range tors {
			now[r] = is.at(t, r, earlier[r])
			condition(t, r.name6(), metav1.ConditionTrue, "Established", "3/3")
		}
		earlier = now
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

// opened is a router's view of a second session with a node whose BGPPeer has more in its spec.
type opened struct {
	more          string
	asn           uint32
	hold, restart time.Duration
	both          bool // families
}

// at waits until the router has a newer session with every node, and checks the values of each.
func (o opened) at(t *testing.T, r *tor, earlier map[string]router.Session) (now map[string]router.Session) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("%s has a second session with each node, with %q", r.name, o.more), func(ctx context.Context) (err error) {
		now, err = r.sessions(ctx, "v6")
		for name, was := range earlier {
			if is := now[name]; is.Established && is.Same(was) {
				err = errors.Join(err, fmt.Errorf("that with %s is the old one", name))
			}
		}
		return err
	})
	for name, is := range now {
		if is.Hold != o.hold || is.RestartTime != o.restart {
			t.Errorf("with %q %s has agreed with %s on a hold time of %s and a graceful restart of %s, want %s and %s", o.more, r.name, name, is.Hold, is.RestartTime, o.hold, o.restart)
		}
	}
	for prefix, want := range map[netip.Prefix]bool{host(vip): o.both, host(vip6): true} {
		r.rib(t, prefix, fmt.Sprintf("from each node over IPv6 (%t), of AS %d", want, o.asn), func(by map[netip.Addr]router.Path) error {
			for _, n := range cluster.Nodes {
				if p, there := by[n.Addr6]; there != want || there && p.ASPath != fmt.Sprint(o.asn) {
					return fmt.Errorf("from %v it has %+v", n.Addr6, p)
				}
			}
			return nil
		})
	}
	return now
}
