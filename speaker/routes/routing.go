package routes

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// Routing is the sessions and routes of a node, and the outcome for each address.
type Routing struct {
	// BGP is the desired state of the BGP daemon. PeerProblems are the BGPPeers of this node that have no session, or
	// lack part of their configuration. LocalPrefs are the contradictions of advertisements, with the number of
	// prefixes.
	BGP          BGP
	PeerProblems map[string]PeerProblem
	LocalPrefs   map[LocalPrefs]int
	// Routed are the addresses that a BGPAdvertisement covers on this node, Under those of each aggregate.
	Routed map[netip.Addr]Routed
	Under  map[netip.Prefix]map[netip.Addr]struct{}
}

// NewRouting returns a Routing without sessions and routes.
func NewRouting() Routing {
	return Routing{
		BGP:          BGP{Peers: map[string]Peer{}, Routes: map[netip.Prefix]Route{}},
		PeerProblems: map[string]PeerProblem{},
		LocalPrefs:   map[LocalPrefs]int{},
		Routed:       map[netip.Addr]Routed{},
		Under:        map[netip.Prefix]map[netip.Addr]struct{}{},
	}
}

// ChangedRouting names the parts of Routing that may differ from the last plan.
type ChangedRouting struct {
	// Peers of BGP.Peers and PeerProblems; Routes of BGP.Routes, with the reason. Routed are the addresses of Routed.
	Peers  map[string]struct{}
	Routes map[netip.Prefix]view.Reason
	Routed map[netip.Addr]struct{}
	// RouterID, NodeDecommissioning and LocalPrefs are set if they differ.
	RouterID, NodeDecommissioning, LocalPrefs bool
}

func newChangedRouting() ChangedRouting {
	return ChangedRouting{Peers: map[string]struct{}{}, Routes: map[netip.Prefix]view.Reason{}, Routed: map[netip.Addr]struct{}{}}
}

// Routed is the outcome for an address that a BGPAdvertisement covers.
type Routed struct {
	// Reason is Announced, NoEndpoint or GracefulShutdown if it is announced, else why it is not.
	Reason view.Reason
	// Prefixes are the announced ones, sorted; none if it is not announced.
	Prefixes []netip.Prefix
}

// Failed reports whether this node could not program the address. Whether any node serves an address is evaluated by
// ironlb-ccm.
func (r Routed) Failed() bool {
	switch r.Reason {
	case view.Announced, view.GracefulShutdown, view.NoEndpoint, view.NoLocalEndpoint, view.NoPeer, view.Excluded, view.NoService, view.NoAdvertisement:
		return false
	}
	return true
}

func (r Routed) equal(s Routed) bool {
	return r.Reason == s.Reason && slices.Equal(r.Prefixes, s.Prefixes)
}

// LocalPrefs are two BGPAdvertisements of the same prefix to one internal peer with different values of localPref. The
// lower one counts.
type LocalPrefs struct{ Lower, Higher string }

// PeerProblem is why a BGPPeer that selects this node has no session here, or lacks part of its configuration.
type PeerProblem struct {
	Reason  view.Reason
	Message string
}
