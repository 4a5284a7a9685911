// Package steady measures what a client sees of an address while who answers for it changes: Client asks and connects all the
// time, Watcher counts who answers ARP and neighbour solicitations. Both work in network namespaces of this machine and not of
// an emulated guest, whose clock runs too slowly to measure by.
package steady
