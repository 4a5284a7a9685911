package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
)

const (
	httpPort   = scene.HTTPPort
	udpPort    = scene.UDPPort
	streamPort = scene.StreamPort
	programmed = scene.Programmed
	perRound   = scene.PerRound
)

// Short names for the functions of package scene.
var (
	service     = scene.Service
	get         = scene.Get
	withAddress = scene.WithAddress
	edit        = scene.Edit
	policy      = scene.Policy
	ofType      = scene.OfType
	endpoints   = scene.Endpoints
	podMachine  = scene.PodMachine
	external    = scene.External
	internal    = scene.Internal
	nodePort    = scene.NodePort
	at          = scene.At
	answered    = scene.Answered
	seen        = scene.Seen
	refused     = scene.Refused
	dropped     = scene.Dropped
)

// by routes the client's packets for the address through one node, and waits until that node takes them in. Before that
// it would forward them to the owner: requests would be answered, and open connections reset a moment later.
func by(t testing.TB, client *lab.Machine, addr netip.Addr, node *lab.Node) {
	t.Helper()
	scene.By(t, client, addr, node)
	for _, each := range scene.Each(netip.AddrPortFrom(addr, 0)) {
		to := each.Addr().String()
		cluster.Await(t, programmed, fmt.Sprintf("%s is a local address of %s", to, node.Name), func(ctx context.Context) error {
			route, err := node.Exec(ctx, "ip", "-o", "route", "get", to)
			if err == nil && !strings.HasPrefix(route, "local ") {
				err = fmt.Errorf("%s has the route %s", node.Name, route)
			}
			return err
		})
	}
}
