package forwarding

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// slotsOf assigns each slot of a virtual server to an endpoint by rendezvous hashing, and returns the nodes of these
// endpoints by their index. The result does not depend on the order of the endpoints, and is equal on all nodes with
// the same endpoints, whatever their indexes. An endpoint that is added or removed changes only its own slots: on
// average one in n of n endpoints. The hash includes the virtual server, so that Services with the same few endpoints
// do not all load the same node. There must be an endpoint.
//
// The hash is constant. Speakers of different versions share connections during an upgrade, so it must not change.
func slotsOf(key ipvs.Key, endpoints map[netip.AddrPort]uint16) *ipvs.Slots {
	type hashed struct {
		hash uint64
		at   netip.AddrPort
		node uint16
	}
	all := make([]hashed, 0, len(endpoints))
	for at, node := range endpoints {
		all = append(all, hashed{hashOf(at, 0), at, node})
	}
	virtual := hashOf(netip.AddrPortFrom(key.Addr, key.Port), key.Protocol)
	out := &ipvs.Slots{}
	for slot := range out {
		of := mix(virtual + uint64(slot))
		first, most := 0, mix(all[0].hash^of)
		for i := 1; i < len(all); i++ {
			rank := mix(all[i].hash ^ of)
			if rank > most || rank == most && all[i].at.Compare(all[first].at) < 0 {
				first, most = i, rank
			}
		}
		out[slot] = all[first].node
	}
	return out
}

// digestOf returns a digest of the slots of a virtual server and of what their hash is over, from the names of the
// nodes. It distinguishes tables that differ by accident, not by design. It must not change: speakers of different
// versions compare it.
func digestOf(key ipvs.Key, d ipvs.Directed, names []string) uint64 {
	digest := hashOf(netip.AddrPortFrom(key.Addr, key.Port), key.Protocol)
	if d.ByClient {
		digest = mix(^digest)
	}
	hashes := map[uint16]uint64{}
	for _, node := range d.Slots {
		hash, known := hashes[node]
		if !known {
			hash = hashOfName(names[node])
			hashes[node] = hash
		}
		digest = mix(digest ^ hash)
	}
	return digest
}

const fnvBasis, fnvPrime = 0xcbf29ce484222325, 0x100000001b3

func hashOfName(name string) uint64 {
	hash := uint64(fnvBasis)
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * fnvPrime
	}
	return mix(hash)
}

// hashOf hashes an address, a port and a protocol with 64-bit FNV-1a, and mixes the result.
func hashOf(at netip.AddrPort, protocol ipvs.Protocol) uint64 {
	hash := uint64(fnvBasis)
	for _, b := range at.Addr().As16() {
		hash = (hash ^ uint64(b)) * fnvPrime
	}
	for _, b := range [...]byte{byte(at.Port() >> 8), byte(at.Port()), byte(protocol)} {
		hash = (hash ^ uint64(b)) * fnvPrime
	}
	return mix(hash)
}

// mix is the finalizer of splitmix64: each bit of the result depends on each bit of x, and no two x have the same
// result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// beforeOf returns, for each slot, the node before its last change: that of last where it differs from now, else that
// of the earlier changes. Without last, the nodes are those of now. A node that gone reports is replaced by that of
// now. The result may share its arguments.
func beforeOf(now, last, before *ipvs.Slots, gone func(node uint16) bool) *ipvs.Slots {
	if last == nil {
		return now
	}
	out := *before
	for slot, node := range now {
		if last[slot] != node {
			out[slot] = last[slot]
		}
		if gone(out[slot]) {
			out[slot] = node
		}
	}
	switch out {
	case *now:
		return now
	case *before:
		return before
	}
	return &out
}
