// Package returnroute makes the answers of virtual addresses leave by another route than that of the node's other
// packets: by the router of the network from which the requests come (docs/design/return-routes.md).
//
// Each route has a routing table of its own. Rules lead to it: one by a packet mark, for answers, which still have the
// endpoint's address when the kernel routes them; and some by the virtual addresses as source, for packets of the
// kernel and for the reverse path filter. The table of nftables sets the mark and removes it.
package returnroute
