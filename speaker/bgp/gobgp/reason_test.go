package gobgp

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestNoInterface: a link-local address on an interface that the node does not have is reported with its field, and the
// peer comes up as soon as possible after the interface is added.
func TestNoInterface(t *testing.T) {
	t.Parallel()
	space := netspace.New(t)
	d := startNode(t, space)
	fixed := routes.Peer{Address: addr("fe80::1%eth9"), Port: 179, MyASN: nodeASN, PeerASN: routerASN, IPv6: true, ConnectTime: time.Second}
	dynamic := fixed
	dynamic.Address, dynamic.PeerASN, dynamic.Dynamic = addr("fe80::2%eth9"), 0, view.AnyExternal
	d.apply(t, wanted(map[string]routes.Peer{"fixed": fixed, "dynamic": dynamic}, map[netip.Prefix]routes.Route{vip6: to("fixed", "dynamic")}))
	for _, name := range []string{"fixed", "dynamic"} {
		if s := d.fails(t, name, routes.NotConfigured); !strings.HasPrefix(s.Message, "peerAddress: this node has no interface eth9: ") {
			t.Errorf("%s: %s", name, s.Message)
		}
	}
	netspace.Join(t, space, "eth9", "203.0.113.65/28", netspace.New(t), "eth0", "203.0.113.66/28")
	for _, name := range []string{"fixed", "dynamic"} {
		d.session(t, name, "no answer there", func(s routes.Session) bool { return s.Reason == routes.NoAnswer || s.Reason == routes.Unreachable })
	}
}

// TestOwnAddress: a refusal by this node itself is not one by a router, and the message names it.
func TestOwnAddress(t *testing.T) {
	t.Parallel()
	space, far := netspace.New(t), netspace.New(t)
	netspace.Join(t, space, "eth0", "203.0.113.65/28", far, "eth0", "203.0.113.66/28")
	d := startNode(t, space)
	own := routes.Peer{Address: addr("203.0.113.65"), Port: 179, MyASN: nodeASN, PeerASN: routerASN, IPv4: true, ConnectTime: time.Second}
	router := own
	router.Address = addr("203.0.113.66")
	d.apply(t, wanted(map[string]routes.Peer{"own": own, "router": router}, map[netip.Prefix]routes.Route{vip4: to("own", "router")}))
	for name, want := range map[string]string{
		"own":    "203.0.113.65 port 179 is an address of this node, where no BGP daemon listens: set another peerAddress, or exclude this node by nodeSelectors",
		"router": "203.0.113.66 port 179 refuses the connection: does a BGP daemon listen there?",
	} {
		if s := d.fails(t, name, routes.Refused); s.Message != want {
			t.Errorf("%s: %q, want %q", name, s.Message, want)
		}
	}
}

// TestWrongASN: the AS that the router has, and the field to set it in, as found by GoBGP's own code.
func TestWrongASN(t *testing.T) {
	open := bgp.NewBGPOpenMessage(65002, 90, "192.0.2.1", nil).Body.(*bgp.BGPOpen)
	for _, tt := range []struct {
		peer routes.Peer
		want string
	}{
		{routes.Peer{MyASN: 65001, PeerASN: 65000}, "the router has AS 65002: set peerASN to it (now 65000)"},
		{routes.Peer{MyASN: 65000, Dynamic: view.AnyInternal}, "the router has AS 65002, and dynamicASN: internal requires this node's own, 65000: set dynamicASN: external, or peerASN: 65002"},
		{routes.Peer{MyASN: 65001, Dynamic: view.AnyExternal}, "the router has AS 65002, and had 65000 when it was queried: it will be queried again"},
	} {
		_, err := bgp.ValidateOpenMsg(open, 65000, 65001, addr("192.0.2.9").AsSlice())
		message, is := err.(*bgp.MessageError)
		if !is {
			t.Fatalf("GoBGP takes another AS: %v", err)
		}
		if got := refusing(message, tt.peer); got != (cause{routes.WrongASN, tt.want}) {
			t.Errorf("got %+v, want %q", got, tt.want)
		}
	}
}
