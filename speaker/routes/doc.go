// Package routes plans the BGP sessions and routes of one node.
//
// The BGPPeers that select the node become sessions (peers.go); of several with one address the oldest wins. A pool
// address is announced while a BGPAdvertisement covers it and this node, the data plane serves it, and the node may
// take its traffic: with policy Local an endpoint is here (evaluate.go, sharers.go). Each advertisement announces the
// address within a prefix. A prefix is announced while an address is behind it, to each peer that receives one of its
// advertisements, with their attributes united (route.go). A node that is being decommissioned first asks the routers
// for another route, and withdraws its own later (decommission.go).
//
// The Planner decides again only about the addresses and prefixes that a change affects, after the data plane is
// planned. Its Routing has the desired state of the BGP daemon and the outcome for each address. Change and Session are
// what the speaker and the BGP daemon exchange.
//
// It is pure: no I/O, no clock, no Kubernetes type.
package routes
