// Package virtualip is the placement controller: it writes one VirtualIP for the addresses that move together.
//
// One goroutine, Placer, runs passes; informers only trigger it. A pass groups the addresses that move together
// (unit), finds the nodes that an L2Advertisement selects for them (matcher), decides the order of the nodes (package
// placement, pure), and writes what differs (vipWriter). The node that announces an address stays first. Deliberate
// moves go one at a time, to nodes whose speakers can take over (mover). After a start and after an outage of the API
// server the lists stay unchanged until the speakers have had time to report what they elected (settles). Addresses
// that a foreign host has are withheld from the allocator (foreignHosts).
package virtualip
