package forwarding

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// variants is the number of different slots of virtual servers with the same endpoints. With more of them, nodes that
// have by chance more or less slots than their share of one have less so of all. With fewer, virtual servers share more
// tables (ipvs/direct).
const variants = 16

// slotsOf assigns each slot of a virtual server to a node by rendezvous hashing. spread are the numbers of endpoints by
// the index of their node: a node takes part once for each. The result is equal on all nodes with the same endpoints,
// whatever their indexes, and depends only on their numbers and on the names of their nodes. One more or less changes
// only its own slots: on average one in n of n endpoints. There must be an endpoint.
//
// The hash is constant. Speakers of different versions share connections during an upgrade, so it must not change.
func slotsOf(key ipvs.Key, spread map[uint16]int, names []string) *ipvs.Slots {
	type candidate struct {
		hash uint64
		node uint16
	}
	var all []candidate
	for node, endpoints := range spread {
		name := hashOfName(names[node])
		for i := range uint64(endpoints) {
			all = append(all, candidate{mix(name + i), node})
		}
	}
	variant := hashOf(netip.AddrPortFrom(key.Addr, 0), 0) % variants
	out := &ipvs.Slots{}
	for slot := range out {
		of := mix(variant*ipvs.NumSlots + uint64(slot))
		first, most := 0, mix(all[0].hash^of)
		for i := 1; i < len(all); i++ {
			rank := mix(all[i].hash ^ of)
			if rank > most || rank == most && names[all[i].node] < names[all[first].node] {
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
