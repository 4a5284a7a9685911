// Package bgpstatus writes the status of BGPPeers and BGPAdvertisements.
//
// One goroutine, Controller, lists all objects that BGP depends on at each pass, and writes what differs.
// evaluatePeer and evaluateAdvertisements are pure. A peer is Established when every node that selects it has a
// session by the report of its speaker; a node whose report is outdated, or whose speaker is absent, counts as
// unknown. An advertisement is Ready when all that it names exists, no other one contradicts it, and its prefixes
// hold only addresses that it selects.
package bgpstatus
