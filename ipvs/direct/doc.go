// Package direct is the driver of the first tier of directed virtual servers ([ipvs.Direct]): nftables choose the node
// of a connection by a hash and send its packets there through a tunnel. It keeps no state per connection, so any node
// can take over at any time (docs/design/direct.md).
//
// One network namespace gets two vxlan devices, ironlb-t1 and ironlb-t2 (the second chance), with a permanent neighbor
// and a forwarding entry per peer, and the nftables tables ironlb-direct of both families. A filter precedes the
// devices (filterTable). All of these belong to the driver. It writes differences only, also to what an earlier process
// wrote.
package direct
