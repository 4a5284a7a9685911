// Package nftlb carries out virtual servers by DNAT in nftables, with the interface of package ipvs/kernel: for kernels without
// IPVS, and beside IPVS for those clients that IPVS cannot tell from others (docs/design/data-plane.md).
//
// A table holds maps and few chains. A new connection is looked up in the map of virtual servers, which names the chain of its
// class (choose one of four slots at random, say); the rule there chooses a slot and looks up the real server that has it. So a
// change is a change of elements, whatever the number of virtual servers, and one of any number of them is one transaction. The
// comments of the elements hold what the rules cannot express, so that everything is read back as it was written, also by
// another process.
//
// # What is approximated
//
// nftables counts no connections, so the schedulers of IPVS become:
//
//	rr, lc                                 one at random, all alike: an even share in the mean, not in turn
//	wrr, wlc, sed, nq, lblc, lblcr, ovf    one at random, by weight
//	sh                                     by a hash of the client's address (with flag 0x10 of its port, too), by weight
//	mh                                     the same, and few clients move when a real server comes or goes
//	dh                                     one for the virtual address, by a hash
//	fo                                     the heaviest
//
// Weights without a small ratio are rounded to 1/256. sh and mh never choose a real server of weight 0, as with their flag
// "fallback". The other flags are kept and do nothing.
//
// Every forwarding method is carried out as Masquerade: DNAT can neither tunnel nor leave the destination as it is.
//
// A connection that is established goes on when its real server gets weight 0 or is deleted; IPVS with expire_nodest_conn would
// end it. A virtual server without slots is refused, by TCP reset or ICMP.
//
// Persistence remembers 262,144 clients for each family; beyond that a client is served and not remembered. A client whose real
// server goes is forgotten right after the change, not with it.
package nftlb
