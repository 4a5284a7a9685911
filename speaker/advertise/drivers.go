package advertise

import (
	"net/netip"

	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Announcer answers ARP and NDP for addresses.
type Announcer interface {
	// Announce replaces the full set and returns the interfaces on which each address is announced. An address that is
	// still being probed is absent. The end of its probe triggers the loop.
	Announce(map[netip.Addr]ownership.Announcement) (map[netip.Addr][]string, error)
	// Conflicts are the addresses for which another host answers: of the set, or removed from it less than ten minutes
	// ago. A change triggers the loop.
	Conflicts() map[netip.Addr]view.Conflict
	// SetPeers sets the hardware addresses that belong to members, by node.
	SetPeers(macs map[[6]byte]string)
}

// Daemon is the BGP daemon, which announces addresses to routers.
type Daemon interface {
	// Set publishes a change; the first change is a full state. It does not block. The last state outlives this
	// process.
	Set(routes.Change)
	// Sessions returns the state of the sessions, by the name of the peer: nil until the daemon has reported. A session
	// may be absent until it starts. A change triggers the loop.
	Sessions() map[string]routes.Session
}

// Blackholes are routes that drop packets for unallocated addresses of a prefix.
type Blackholes interface {
	// Blackholes returns the owned blackholes, including those of an earlier process.
	Blackholes() (map[netip.Prefix]struct{}, error)
	// AddBlackhole reports whether the blackhole was added.
	AddBlackhole(netip.Prefix) (bool, error)
	// RemoveBlackhole reports whether the blackhole existed.
	RemoveBlackhole(netip.Prefix) (bool, error)
}
