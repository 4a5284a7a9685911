package main

import (
	"strings"
	"testing"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestTTLSecurityWithBFD: BFD with a session that accepts only TTL 255. For an external neighbor with ttl-security FRR
// uses the multihop port, at any distance (bgpd: PEER_IS_MULTIHOP), so the BFDProfile must set minimumTtl. For an
// internal neighbor, and with BIRD, it must not.
func TestTTLSecurityWithBFD(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, kind string
		asn        uint32
		minimum    uint8
	}{
		{"bird", "bird", 65002, 0},
		{"frr", "frr", 65002, 255},
		{"frr internal", "frr", 65001, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.kind, false)
			n := router.Neighbor{Name: "node", Address: addr("192.0.2.1"), ASN: 65001, Password: password, TTLSecurity: true,
				BFD: router.BFDTimers{Interval: timers.Receive, Multiplier: int(timers.Multiplier)}}
			if err := r.router.Configure(r.ctx, router.Config{ASN: c.asn, ID: routerAddr, Neighbors: []router.Neighbor{n}}); err != nil {
				t.Fatal(err)
			}
			s, change := r.speaker(), wanted(true, true)
			tor := change.Peers["tor"]
			tor.PeerASN, tor.TTLSecurity, tor.BFD.MinimumTTL = c.asn, true, c.minimum
			s.Set(change)
			r.session(s, "established, and BFD is up", func(s routes.Session) bool { return established(s) && s.BFD == view.BFDUp })
			r.settled(true)
			seen, err := r.bfd()
			if err != nil {
				t.Fatal(err)
			}
			if multihop := strings.Contains(seen.Text, `"multihop":true`); multihop != (c.minimum > 0) {
				t.Errorf("the router's session is another one than thought: %s", seen.Text)
			}
			r.cut()
			r.session(s, "down by BFD", func(s routes.Session) bool {
				return s.State != routes.SessionEstablished && s.Reason == routes.BFDWentDown
			})
		})
	}
}

// TestWhyBFDIsNotUp: the session is established without BFD, with the reason: BIRD's packets have a TTL too low, or a
// router has no BFD.
func TestWhyBFDIsNotUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		timers  router.BFDTimers
		minimum uint8
		why     string
	}{
		{"a TTL too low", router.BFDTimers{Interval: timers.Receive, Multiplier: int(timers.Multiplier)}, 254,
			"packets of the peer arrive with TTL 64, minimum 254: set minimumTtl to 64 if the peer is that many hops away"},
		{"no BFD", router.BFDTimers{}, 0, "it has not been up yet: no BFD packet of the peer has arrived"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "bird", false)
			n := router.Neighbor{Name: "node", Address: addr("192.0.2.1"), Local: routerAddr, ASN: 65001, Password: password, MultiHop: 2, BFD: c.timers}
			if err := r.router.Configure(r.ctx, router.Config{ASN: 65002, ID: routerAddr, Neighbors: []router.Neighbor{n}}); err != nil {
				t.Fatal(err)
			}
			s, change := r.speaker(), wanted(true, true)
			change.Peers["tor"].MultiHop, change.Peers["tor"].BFD.MinimumTTL = true, c.minimum
			s.Set(change)
			r.session(s, "established without BFD, with the reason", func(s routes.Session) bool {
				return established(s) && s.BFD == view.BFDDown && s.BFDMessage == c.why
			})
		})
	}
}
