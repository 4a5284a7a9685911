package plan

import (
	"net/netip"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/routes"
)

// Desired is the full desired state of a node.
type Desired struct {
	forwarding.Forwarding
	ownership.Owners
	routes.Routing
}

func newDesired() *Desired {
	return &Desired{Forwarding: forwarding.NewForwarding(), Owners: ownership.NewOwners(), Routing: routes.NewRouting()}
}

// Changed names the parts of Desired that may differ from the last call of Plan; everything else is unchanged.
type Changed struct {
	forwarding.ChangedForwarding
	ownership.ChangedOwners
	routes.ChangedRouting
	// Addrs are those of Local, Announce and Routed.
	Addrs map[netip.Addr]struct{}
}
