// Package steady measures an address from a client's view while its owner changes: Client sends requests and connects
// continuously, Watcher counts the stations that answer ARP and neighbor solicitations. Both work in network namespaces
// of this machine and not of an emulated guest, whose clock runs too slowly for measurements.
package steady
