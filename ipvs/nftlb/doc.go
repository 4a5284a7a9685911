// Package nftlb implements virtual servers by DNAT in nftables, with the interface of package ipvs/kernel. It is for
// kernels without IPVS, and used alongside IPVS for clients that IPVS cannot distinguish (docs/design/data-plane.md).
//
// A table contains maps and few chains. A new connection is matched with the map of virtual servers, which names the
// chain of its class (choose one of four slots at random, for example). The rule there selects a slot and finds its
// real server. So a change is a change of elements, whatever the number of virtual servers, and changes of any number
// of them are one transaction for each family. The comments of the elements hold what the rules cannot express, so that
// the state is read back as it was written, also by another process.
//
// # What is approximated
//
// nftables counts no connections. Of the schedulers of IPVS it has:
//
//	rr     one at random, all equal: an even share on average, not round robin
//	wrr    one at random, by weight; also in place of every other scheduler
//	sh     by a hash of the client's address (flag 0x10: and port), by weight
//	mh     the same, and few clients move when a real server is added or deleted
//
// Weights without a small ratio are rounded to 1/256. sh and mh never choose a real server of weight 0, as with their
// flag "fallback". The other flags are kept without effect.
//
// Every forwarding method is implemented as Masquerade: DNAT can neither tunnel nor keep the destination.
//
// An established connection continues when its real server gets weight 0 or is deleted; IPVS with expire_nodest_conn
// would end it. A virtual server without slots is refused, by TCP reset or ICMP.
//
// Persistence records the affinity of 262,144 clients per family; further clients are served without affinity. The
// affinity to a deleted real server is removed right after the change, not with it.
package nftlb
